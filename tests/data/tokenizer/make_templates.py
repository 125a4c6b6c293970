"""Makes templates.json: what jinja2, set up as transformers does for chat templates, makes of templates.

    python make_templates.py > templates.json        (transformers 5.22, jinja2 3.1.6)

"engine": small templates, each with its result ("text") or with "error": true. "chats": the templates of
chat_templates/*.jinja over conversations, with "text" and the {% generation %} blocks ("generation", in characters) or
"error", a part of what raise_exception says. The clock stands at 2024-07-26 13:05:09.
"""
import datetime
import json
import pathlib
import sys

from transformers.utils import chat_template_utils

NOW = datetime.datetime(2024, 7, 26, 13, 5, 9)
compile_template = chat_template_utils._compile_jinja_template


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


chat_template_utils.datetime = Clock

CONTEXT = {
    "messages": [{"role": "user", "content": "Hi <b>"}, {"role": "assistant", "content": "Yo", "n": 3}, {"role": "user", "content": "ok"}],
    "d": {"b": 2, "a": 1, "C": [1, 2.5, None, True, "x'y"], "items": 7, "nested": {"k": {"z": "é"}}},
    "l": [3, 1, 2, 3], "words": ["beta", "Alpha", "gamma", "alpha"], "s": "Hello, Wörld", "empty": "", "n": None, "t": True, "f": False, "i": 7, "x": 2.5,
    "people": [{"name": "Bo", "age": 30}, {"name": "al", "age": 25}, {"name": "Cy"}], "sp": "  pad\t\n", "u": "ǆ straße ΣΑΣ İ", "z": 0,
}

SNIPPETS = [
    # values in print
    "{{ 1 }} {{ -3 }} {{ 1.0 }} {{ 1e100 }} {{ 1e16 }} {{ 123456789012345.0 }} {{ 0.00001 }} {{ 0.1 + 0.2 }} {{ 1/3 }} {{ 10/2 }} {{ 2**10 }} {{ 2**-1 }} {{ 2.0**3 }}",
    "{{ true }} {{ false }} {{ none }} {{ True }} {{ None }} {{ n }} {{ t }}",
    "{{ [1, 'a', none, true, 2.50, [], {}, (), (1,), (1, 2)] }} {{ d }}", "{{ {'a': \"it's\", 'b': 'say \"x\"', 'c': 'both \\' \"', 1: 2} }}",
    "{{ ['\\n\\t\\r\\\\', 'é', '\\x00\\x1f\\x7f', '\\u200b', '\\xa0', '😀', '\\u0378'] }}", "{{ d.items() }} {{ d.keys() }} {{ d.values() }}", "{{ range(3) }} {{ range(1, 7, 2) }} {{ range(0) }} {{ range(5)|list }}",
    "{{ undefined_name }}|{{ d.nope }}|{{ l[9] }}|{{ s[99] }}|{{ d['x'] }}", "{{ (1) }} {{ (1,) }} {{ 1, 2 }}", "{{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1_000 }} {{ 1e3 }} {{ 1.5e-7 }} {{ 1_0.2_5 }}",
    "{{ 'a' 'b' \"c\" }}", "{{ '\\x41\\u00e9\\U0001F600\\101\\q' }}", "{{ 'multi\nline' }}", "{{ namespace(a=1, b='x') }}", "{{ -2|abs }} {{ (-2)|abs }} {{ -2.5|abs }}",
    # arithmetic
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ -7 // -2 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 7 / 2 }} {{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }}",
    "{{ true + 1 }} {{ true * 3 }} {{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ [1] * 3 }} {{ [1] + [2] }} {{ (1,) + (2,) }} {{ 'a' * -1 }}|", "{{ 1 ~ 2 ~ none ~ 'x' ~ undefined_name ~ 1.0 ~ [1] }}", "{{ 1 + 1 ~ 2 * 3 }}",
    "{{ 1 / 0 }}", "{{ 1 % 0 }}", "{{ 'a' + 1 }}", "{{ none + 1 }}", "{{ undefined_name + 'x' }}", "{{ [] + () }}", "{{ 1 < 'a' }}", "{{ -'a' }}", "{{ 'x' - 1 }}",
    # comparison, logic
    "{{ 1 == 1.0 }} {{ 1 == true }} {{ '1' == 1 }} {{ [1, 2] == [1, 2.0] }} {{ (1,) == [1] }} {{ {'a': 1} == {'a': 1.0} }} {{ none == false }} {{ undefined_name == undefined_other }} {{ undefined_name == none }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 3 > 2 >= 2 != 1 }} {{ 'a' < 'b' }} {{ 'Z' < 'a' }} {{ [1, 2] < [1, 3] }} {{ 'é' > 'z' }}", "{{ 1 in l }} {{ 9 not in l }} {{ 'ell' in s }} {{ 'a' in d }} {{ 2 in d }} {{ 'x' in undefined_name }} {{ 'name' in people[0] }}",
    "{{ 1 and 2 }} {{ 0 and 2 }} {{ 0 or 'x' }} {{ '' or none }} {{ not 1 }} {{ not '' }} {{ not not l }} {{ 1 and 0 or 3 }} {{ not 1 == 2 }} {{ not x is defined }}", "{{ 'a' if t else 'b' }} {{ 'a' if f else 'b' }} {{ 'a' if f }}| {{ ('a' if f else 'b') if t else 'c' }} {{ 'a' if f else 'b' if f else 'c' }}", "{{ 1 in 5 }}", "{{ 5 in 'abc' }}",
    # attributes, subscripts, slices
    "{{ d.a }} {{ d['a'] }} {{ d.nested.k.z }} {{ d['nested']['k']['z'] }} {{ l[0] }} {{ l[-1] }} {{ l.0 }} {{ s[1] }} {{ s[-1] }} {{ d.C[2] }} {{ people[0].name }}", "{{ d['items'] }} {{ d.items is callable }} {{ d.get('a') }} {{ d.get('q') }} {{ d.get('q', 5) }} {{ d.get('q', default=1) if f else '' }}",
    "{{ l[1:] }} {{ l[:-1] }} {{ l[::-1] }} {{ l[::2] }} {{ l[1:3] }} {{ l[-2:] }} {{ l[5:] }} {{ l[:] }} {{ s[1:4] }} {{ s[::-1] }} {{ s[-5:] }} {{ s[8:9] }} {{ (1, 2, 3)[1:] }} {{ l[-100:2] }} {{ l[3:0:-2] }} {{ s[::-3] }} {{ range(9)[2:5]|list }}",
    "{{ undefined_name.x }}", "{{ undefined_name[0] }}", "{{ d.nope.x }}", "{{ none.x }}|", "{{ none['x'] }}|", "{{ none.x.y }}", "{{ l.append(1) }}", "{{ d.update({}) }}", "{{ d.pop('a') }}", "{{ s.__class__ }}|", "{{ s.__class__.__mro__ }}", "{{ l[::0] }}", "{{ undefined_name() }}", "{{ s() }}", "{{ 5() }}", "{{ l['x'] }}|{{ 5['x'] }}|",
    # string methods
    "{{ s.upper() }} {{ s.lower() }} {{ s.title() }} {{ 'heLLo wORLD'.capitalize() }} {{ \"it's o'neil 3rd\".title() }} {{ s.swapcase() }} {{ u.upper() }} {{ u.title() }} {{ u.capitalize() }}", "{{ sp.strip() }}|{{ sp.lstrip() }}|{{ sp.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'abcba'.strip('ab') }}|{{ 'éaé'.strip('é') }}|",
    "{{ 'a,b,,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ ' a  b c '.split() }} {{ ' a  b c '.split(none, 1) }} {{ 'a b c'.rsplit(' ', 1) }} {{ ' a b  c '.rsplit(maxsplit=1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a<s>b<s>'.split('<s>') }}", "{{ 'a'.split('') }}",
    "{{ 'a\\nb\\r\\nc\\n'.splitlines() }} {{ 'a\\nb'.splitlines(true) }} {{ ''.splitlines() }}", "{{ s.startswith('He') }} {{ s.endswith('ld') }} {{ s.startswith(('x', 'H')) }} {{ s.startswith('e', 1) }} {{ s.endswith('H', 0, 1) }} {{ s.startswith('') }}", "{{ s.find('W') }} {{ s.find('ö') }} {{ s.rfind('l') }} {{ s.find('zz') }} {{ s.find('l', 5) }} {{ s.index('l') }} {{ s.count('l') }} {{ 'aaa'.count('aa') }} {{ 'abc'.count('') }} {{ s.find('rl', -5) }}", "{{ s.index('zz') }}",
    "{{ 'aXbXc'.replace('X', '--') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'abc'.replace('', '-') }} {{ 'éé'.replace('', '.') }} {{ 'abc'.replace('', '-', 2) }}", "{{ ', '.join(['a', 'b']) }} {{ ''.join([]) }} {{ '-'.join('abc') }} {{ ', '.join(d.keys()) }}", "{{ ','.join([1, 2]) }}", "{{ 'a-b-c'.partition('-') }} {{ 'a-b-c'.rpartition('-') }} {{ 'abc'.partition('-') }} {{ 'abc'.rpartition('-') }}",
    "{{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }} {{ 'x'.removesuffix('') }} {{ '42'.zfill(5) }} {{ '-42'.zfill(5) }} {{ 'a'.ljust(3) }}| {{ 'a'.rjust(3, '*') }} {{ 'a'.center(4) }}| {{ 'ab'.center(5, '.') }} {{ 'a'.center(4, '.') }}",
    "{{ 'abc'.isalpha() }} {{ 'ab1'.isalpha() }} {{ '12'.isdigit() }} {{ ''.isdigit() }} {{ 'a1'.isalnum() }} {{ ' \\n'.isspace() }} {{ 'AB'.isupper() }} {{ 'A1'.isupper() }} {{ '1'.isupper() }} {{ 'ab'.islower() }} {{ 'éü'.isalpha() }} {{ '日本'.isalpha() }} {{ 'abc'.isascii() }} {{ 'é'.isascii() }}", "{{ s.nope() }}", "{{ s.upper is callable }}",
    # format
    "{{ '{} and {}'.format(1, 'b') }} {{ '{1}{0}'.format('a', 'b') }} {{ '{x}'.format(x=5) }} {{ '{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd') }} {{ '{:.2f} {:5d} {:05d} {:,} {:x} {:+d} {:e} {:%}'.format(3.14159, 42, 42, 1234567, 255, 7, 12345.678, 0.25) }} {{ '{{}}'.format() }} {{ '{0[a]} {1[0]}'.format(d, l) }} {{ '{!r}'.format('x') }} {{ '{:.3}'.format('abcdef') }} {{ '{:8.3f}|'.format(2.5) }} {{ '{:g} {:g}'.format(0.0001, 1e20) }} {{ '{}'.format(none) }} {{ '{:#x} {:b}'.format(255, 5) }}",
    "{{ '{}'.format() }}", "{{ '{a}'.format(b=1) }}", "{{ '%s is %d' % ('x', 3) }} {{ '%5.1f|%-5s|%05d|%x|%%' % (2.25, 'ab', 42, 255) }} {{ '%s' % 'one' }} {{ '%(a)s-%(b)03d' % {'a': 1, 'b': 2} }} {{ '%r' % 'q' }} {{ '%+d % d' % (3, 4) }} {{ '%s' % [1] }} {{ '%d' % 3.9 }}", "{{ '%s %s' % ('a',) }}", "{{ '%d' % 'x' }}", "{{ '%s' % ('a', 'b') }}", "{{ '%s=%s' | format('a', 1) }} {{ '%(x)s' | format(x=2) }}",
    # filters
    "{{ sp|trim }}|{{ 'xax'|trim('x') }}|{{ undefined_name|trim }}|{{ 5|trim }}", "{{ l|length }} {{ s|length }} {{ d|length }} {{ undefined_name|length }} {{ []|count }} {{ '😀é'|length }}", "{{ 5|length }}", "{{ l|map('string')|length }}", "{{ s|upper }} {{ s|lower }} {{ 5|upper }} {{ undefined_name|upper }}|{{ 'a-b c(d {e [f <g it\\'s'|title }} {{ 'hELLO'|capitalize }} {{ 'ÉCOLE étÉ'|title }}",
    "{{ l|join }} {{ l|join(', ') }} {{ people|join(', ', attribute='name') }} {{ ['a', none, 1.5]|join('-') }} {{ 'abc'|join('.') }} {{ undefined_name|join(',') }}|{{ d|join(',') }}", "{{ 5|join }}", "{{ s|replace('l', 'L') }} {{ s|replace('l', 'L', 1) }} {{ 112|replace(1, 3) }}",
    "{{ undefined_name|default('x') }} {{ n|default('x') }} {{ n|default('x', true) }} {{ ''|default('x', boolean=true) }} {{ 0|d(5) }} {{ 0|d(5, true) }} {{ d.q|default }}|{{ d.q|default(d.a) }}", "{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}{% for k, v in undefined_name|items %}x{% endfor %}", "{{ 5|items|list }}", "{{ 'abc'|list }} {{ d|list }} {{ range(3)|list }} {{ (1, 2)|list }}", "{{ none|list }}",
    "{{ people|map(attribute='name')|list }} {{ people|map(attribute='age', default=0)|list }} {{ words|map('upper')|list }} {{ l|map('string')|join('+') }} {{ words|map('replace', 'a', 'o')|list }} {{ [[1, 2], [3]]|map('length')|list }} {{ people|map(attribute='name.0')|list }} {{ [[1, 2], [3, 4]]|map(attribute=1)|list }} {{ words|map('truncate', 3, true, '')|list if f }}",
    "{{ people|selectattr('age')|map(attribute='name')|list }} {{ people|selectattr('age', 'defined')|list|length }} {{ people|rejectattr('age', 'defined')|list }} {{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|list }} {{ messages|selectattr('role', '==', 'user')|list|length }} {{ messages|rejectattr('role', 'in', ['user'])|list }} {{ l|select('odd')|list }} {{ l|reject('gt', 2)|list }} {{ ['', 'a', none]|select|list }} {{ [1, 'a']|select('string')|list }}",
    "{% if messages|selectattr('role', 'equalto', 'nobody') %}always{% endif %}", "{{ l|first }} {{ l|last }} {{ s|first }} {{ s|last }} {{ []|first }}|{{ []|last }}|{{ d|first }} {{ l|map('string')|first }}", "{{ l|map('string')|last }}", "{{ '42'|int }} {{ 'x'|int }} {{ 'x'|int(9) }} {{ '3.7'|int }} {{ 3.7|int }} {{ -3.7|int }} {{ '0x1A'|int(0, 16) }} {{ '101'|int(base=2) }} {{ ' 7 '|int }} {{ none|int }} {{ true|int }} {{ '1e3'|int }} {{ '12'|float }} {{ 'x'|float }} {{ 'x'|float(1.5) }} {{ '1e-3'|float }}", "{{ undefined_name|int }}",
    "{{ 5|string + 'x' }} {{ none|string }} {{ d.a|string ~ 1 }} {{ s|safe }} {{ [1]|string }}", "{{ l|sort }} {{ words|sort }} {{ words|sort(true) }} {{ words|sort(case_sensitive=true) }} {{ people|sort(attribute='name')|map(attribute='name')|list }} {{ [3, 1.5, true]|sort }} {{ d|sort }} {{ [[2, 'a'], [1, 'b']]|sort }} {{ l|sort(reverse=true) }}", "{{ [1, 'a']|sort }}", "{{ people|sort(attribute='age')|list }}",
    "{{ l|unique|list }} {{ words|unique|list }} {{ words|unique(true)|list }} {{ messages|unique(attribute='role')|map(attribute='content')|list }} {{ l|reverse|list }} {{ s|reverse }} {{ d|dictsort }} {{ d|dictsort(true) }} {{ {'x': 2, 'y': 1}|dictsort(false, 'value') }} {{ {'x': 2, 'y': 1}|dictsort(reverse=true) }}", "{{ l|sum }} {{ people[:2]|sum(attribute='age') }} {{ []|sum }} {{ [1.5, 2]|sum }} {{ l|min }} {{ l|max }} {{ words|min }} {{ words|max }} {{ people[:2]|max(attribute='age') }} {{ []|max }}|",
    "{{ 'a\\nb\\n\\nc'|indent }}|{{ 'a\\nb'|indent(2, true) }}|{{ 'a\\n\\nb'|indent(1, blank=true) }}|{{ 'a\\nb'|indent('>> ') }}|{{ 'a\\nb\\n'|indent }}|{{ ''|indent(first=true) }}|{{ 'a\\nb'|indent(width=3, first=false) }}", "{{ -5|abs }} {{ 2.4|round }} {{ 2.5|round }} {{ 3.5|round }} {{ 2.567|round(2) }} {{ 7|round }} {{ 2.1|round(method='ceil') }} {{ 2.9|round(0, 'floor') }} {{ 1234.5|round(-2) }} {{ 0.125|round(2) }} {{ 2.675|round(2) }}",
    "{{ l|batch(3)|list }} {{ l|batch(3, 'x')|list }} {{ 'abc'|center(7) }}| {{ 'a b  c_d'|wordcount }} {{ 'foo bar baz qux'|truncate(9) }} {{ 'foo bar baz qux'|truncate(9, true) }} {{ 'foo bar baz qux'|truncate(11) }} {{ 'foo bar baz qux'|truncate(9, false, '…', 0) }} {{ 'a b&c/é'|urlencode }} {{ '<a href=\"x\">\\'&'|escape }} {{ '<'|e }} {{ d|attr('a') }}|",
    "{{ 'x'|nofilter }}", "{{ 1 is nosuchtest }}", "{{ 'a'|replace('a') }}", "{{ 'a'|trim(1, 2, 3) }}", "{{ 'a'|upper|lower|title }} {{ l|first + 1 }} {{ 'a'|upper ~ 'b' }} {{ (1, 2)|last }}",
    # tojson
    "{{ d|tojson }}", "{{ messages|tojson }}", "{{ d|tojson(indent=2) }}", "{{ {'a': [], 'b': {}, 'c': [[1], {'x': none}]}|tojson(indent=4) }}", "{{ 'é\"\\\\/\\n\\t\\r\\x08\\x0c\\x01<>&\\'😀\\x7f\\u2028'|tojson }}", "{{ 'é😀\\x7f'|tojson(ensure_ascii=true) }}", "{{ d|tojson(separators=(',', ':')) }}", "{{ d.nested|tojson(sort_keys=true) }} {{ {'b': 1, 'a': 2}|tojson(sort_keys=true, indent=1) }}", "{{ {1: 'a', none: 'b', true: 'c', 1.5: 'd'}|tojson }} {{ (1, 2)|tojson }} {{ 1e100|tojson }} {{ 1.0|tojson }} {{ none|tojson }} {{ l|tojson(indent='--') }}", "{{ undefined_name|tojson }}", "{{ l|map('string')|tojson }}", "{{ d.items()|tojson }}", "{{ d|tojson(indent=2, separators=(';', '=')) }}",
    # tests
    "{{ x is defined }} {{ q is defined }} {{ d.q is undefined }} {{ n is none }} {{ n is not none }} {{ s is string }} {{ d is mapping }} {{ l is sequence }} {{ s is sequence }} {{ d is sequence }} {{ l is iterable }} {{ 5 is iterable }} {{ i is number }} {{ t is number }} {{ t is boolean }} {{ i is integer }} {{ t is integer }} {{ x is float }} {{ t is true }} {{ f is false }} {{ 1 is true }} {{ l is mapping }} {{ q is iterable }} {{ q is sequence }}",
    "{{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 1 is eq 1 }} {{ 1 is equalto(1) }} {{ 1 is ne 2 }} {{ 1 is lt 2 }} {{ 2 is ge 2 }} {{ 3 is greaterthan 2 }} {{ 1 is in [1] }} {{ 1 is in(l) }} {{ 'a' is not in 'abc' }} {{ 'abc' is lower }} {{ 'ABC' is upper }} {{ n is sameas none }} {{ 'trim' is filter }} {{ 'odd' is test }} {{ 'x' is filter }} {{ range is callable }} {{ 5 is callable }} {{ l|map('string') is iterable }} {{ l|map('string') is sequence }}",
    "{{ not n is none }} {{ x is defined and x > 2 }} {{ 'yes' if x is defined else 'no' }} {{ (q is defined) or t }}", "{{ x is defined is defined }}",
    # statements and whitespace
    "a\n{% if t %}\n  b\n{% endif %}\nc\n", "a  {%- if t -%}  b  {%- endif -%}  c", "  {% if t %}x{% endif %}\n  {{ 1 }}\n\n", "{% for m in messages %}\n  {{ m.role }}\n{% endfor %}\nend", "{% for x in l -%}\n  {{ x }}\n{%- endfor %}", "{# comment #}\na{# c #}b\n  {# c #}\nc{#- c -#}  d", "a {%+ if t %}b{% endif +%}\nc", "{% if t +%}\nx{% endif %}", "   {%+ if t %}b{% endif %}", "{{- 1 -}}  \n x  {{- 2 }}", "{% raw %}{{ not }} {% this %}{% endraw %}", "a {%- raw -%}  {{ x }}  {%- endraw -%} b", "{% raw %}\n {{ x }}\n {% endraw %}\nz", "x\r\ny\rz\n\n", "line\n\t{% set a = 1 %}\n{{ a }}", "{% if t %}\n\n{% endif %}|", "{{ '{% raw %}' }}{{ '}}' }}{{ {'a': {'b': 1}} }}", "{%- if t %} a{% endif -%}\n\n b", "é\u00a0 {%- if t %}x{% endif %}", "", "\n", "\n\n", "{{ 1 }}\n",
    "{% if f %}a{% elif z %}b{% elif i %}c{% else %}d{% endif %}{% if undefined_name %}x{% else %}y{% endif %}{% if l and d %}z{% endif %}", "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }}{{ loop.cycle('a', 'b') }};{% endfor %}", "{% for x in [] %}a{% else %}none{% endfor %}{% for x in undefined_name %}b{% else %}u{% endfor %}{% for x in l if x > 5 %}c{% else %}e{% endfor %}", "{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% endfor %}", "{% for x in l %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}|{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{{ loop.last }}{% endfor %}", "{% for k, v in d.items() %}{{ k }}:{{ v }},{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for a, b in ['xy'] %}{{ a }}-{{ b }}{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% for x in 5 %}{% endfor %}", "{% for x in none %}{% endfor %}", "{% for c in 'héy' %}{{ c }}.{% endfor %}{% for k in d %}{{ k }}.{% endfor %}{% for i in range(3) %}{{ i }}{% endfor %}", "{% for x in [[1, [2]], [3, []]] recursive %}{{ x[0] if x is sequence else x }}{% if x is sequence and x[1] %}({{ loop(x[1]) }}){{ loop.depth }}{% endif %}{% endfor %}", "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}", "{% for x in l %}{% for y in 'ab' %}{{ loop.index }}{{ y }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% set a = 1 %}{% for x in l %}{% set a = a + x %}{{ a }} {% endfor %}{{ a }}", "{% set ns = namespace(n=0, found=false) %}{% for x in l %}{% set ns.n = ns.n + x %}{% if x == 2 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.n }} {{ ns.found }} {{ ns.q is defined }}", "{% if t %}{% set a = 5 %}{% endif %}{{ a }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d2) = [3, 4] %}{{ c }}{{ d2 }}", "{% set a %}x{{ i }}y{% endset %}{{ a }}{{ a|length }}{% set b | upper | trim %} q {% endset %}{{ b }}", "{% set x = [1, 2] %}{% set x = x + [3] %}{{ x }}{% set m = messages[0] %}{{ m.role }}", "{% set ns.x = 1 %}", "{% set d.a = 1 %}", "{% set ns = namespace(_a=1) %}", "{% set ns = namespace() %}{% set ns._b = 1 %}", "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ ns['a'] }}", "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q is defined }}", "{% filter upper %}abc {{ s }}{% endfilter %}{% filter replace('a', 'b')|trim %} aa {% endfilter %}",
    "{% macro m(a, b=2, c='x') %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(a=5, c='y') }}{{ m() }}{{ m(1)|length }}{{ m.name }}{{ m.arguments }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, k=3) }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(q=2) }}", "{% macro m(n) %}{{ n }}{% if n > 0 %},{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(3) }}", "{% macro list_of(xs) %}<{{ caller('i') }}{% for x in xs %}{{ caller(x) }}{% endfor %}>{% endmacro %}{% call(v) list_of(l) %}*{{ v }}{% endcall %}", "{% set q = 5 %}{% macro m() %}{{ q }}{% set q = 6 %}{% endmacro %}{{ m() }}{{ q }}{% set q = 7 %}{{ m() }}", "{% macro m(x, y=x) %}{{ y }}{% endmacro %}{{ m(3) }}", "{% macro m() -%}\n  a\n{%- endmacro %}|{{ m() }}|{{ m() ~ m() }}", "{% for x in [1, 2] %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m(a) %}{{ a is defined }}{{ a }}{% endmacro %}{{ m() }}{{ m(none) }}", "{{ '%s' % m if m is defined else 'no' }}",
    "{{ raise_exception('bad ' ~ i) }}", "{{ strftime_now('%d %b %Y %H:%M:%S %A %j %-d %%') }}", "{{ strftime_now('%Y-%m-%d') }}", "{{ dict(a=1, b=2) }} {{ dict([('x', 1)]) }} {{ dict({'q': 2}, r=3) }} {{ dict() }}", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}", "{% set j = joiner('; ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}", "{{ range(100001)|length }}", "{{ range(2, 10)|first }} {{ range(10, 0, -3)|list }}",
    "{% generation %}x{{ i }}{% endgeneration %}", "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}", "{% generation %}{% set inner = 1 %}{% endgeneration %}{{ inner is defined }}",
    # syntax errors
    "{{ 1 + }}", "{{ }}", "{% if %}x{% endif %}", "{% if t %}x", "{% for x l %}{% endfor %}", "{% endif %}", "{{ (1 }}", "{{ 'abc }}", "{% unknown %}", "{# open", "{{ 1 1 }}", "{% set 5 = 1 %}", "{% set true = 1 %}", "{{ a.b. }}", "{% raw %} x", "{{ [1, 2 }}", "{{ {'a' 1} }}", "{% macro %}{% endmacro %}", "{% macro m(a=1, b) %}{% endmacro %}", "{% break %}", "{% include 'x' %}", "{% extends 'x' %}", "{{ f(a=1, 2) }}", "{{ x is }}", "{{ a ? b }}", "{{ $x }}", "{% if t %}{% endfor %}", "{% else %}", "{{ 1 if }}", "{% call x %}{% endcall %}", "{% for x in l %}{% else %}{% else %}{% endfor %}", "{% do l.append(1) %}", "{{ x | }}", "{{ not }}", "{{ }", "{% if t }}",
    # odds and ends of real templates
    "{{ messages[0]['role'] + ': ' + messages[0]['content']|trim + '\\n' }}", "{{ (messages|last).content }} {{ messages[-1]['content'] }} {{ messages|length - 1 }} {{ (messages | length) > 2 }}", "{%- for message in messages[::-1] %}{{ message.content }}{{ loop.index0 }}{% endfor %}", "{{ ('a' if messages[0].role == 'system' else 'b') ~ '!' }}", "{% set ns = namespace(msgs=[]) %}{% for m in messages %}{% set ns.msgs = ns.msgs + [m.content] %}{% endfor %}{{ ns.msgs|join('|') }}", "{% if messages[0].role != 'system' and not messages[0].tool_calls %}ok{% endif %}", "{% if 'tool_calls' in messages[0] %}x{% else %}y{% endif %}{% if messages[1].n is defined %}{{ messages[1].n * 2 }}{% endif %}", "{{ messages[0] }}", "{{ messages[0].content is string and messages[0].content|length > 3 }}", "{{ 'x' if messages[5] is defined else 'none' }} {{ messages[5].role }}", "{{ (d.nested or {}).get('k', {}).get('z') }} {{ d.get('nope', {}).get('x') }}", "{{ s[:5] + '...' if s|length > 5 else s }}", "{{ 'a' ~ ('b' * 2) ~ ['c'][0] }} {{ d['a'] if 'a' in d else 0 }} {{ d.C|length }}", "{{ d|length > 3 and l|length == 4 }}", "{{ -1 ** 2 }} {{ 2 - -2 }} {{ +5 }} {{ 10 - 2 - 3 }} {{ 100 / 10 / 2 }} {{ 2 * 3 % 4 }} {{ (7 - 2) ~ 'x' }}", "{{ l[i - 6] }} {{ l[-(1)] }} {{ {'a': 1}['a'] }} {{ [1, 2][0] }} {{ 'abc'[1] }} {{ (l)[0] }} {{ l|first|string|length }}", "{{ 1.5|int + '2'|int }} {{ [1, 2, 3][1:]|first }} {{ 'A,B'.lower().split(',')[1].upper() }}",
    "{{ bos_token }}{{ eos_token }}|", "{{ [1, 2,] }} {{ {'a': 1,} }} {{ (1, 2,) }} {{ dict(a=1,) }}", "{{ 'é'.encode('utf-8') if f else 'skip' }}", "{{ true is boolean and none is none }} {{ 1 if true else 2 }} {{ 'none' }} {{ not none }}", "{{ l is not string and l is sequence }}", "{{ 5 is string or 'a' is string }}", "{{ [i for i in l] if f }}", "{{ x if x > 1 }} {{ x if x > 9 }}|", "{{ ' '.join(words)|length }}{{ words|join(' ')|wordcount }}", "{% print 'a' %}", "{% set a = 'x' if f else 'y' %}{{ a }}{% set b = l, d.a %}{{ b }}", "{{ *l }}", "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}",
]

CHATS = [
    {"name": "plain", "messages": [{"role": "user", "content": " Hi! "}, {"role": "assistant", "content": "Hello\n"}, {"role": "user", "content": "Bye"}, {"role": "assistant", "content": "See you"}]},
    {"name": "system", "messages": [{"role": "system", "content": "Be brief. "}, {"role": "user", "content": "Größe?"}], "kwargs": {"add_generation_prompt": True}},
    {"name": "thinking", "messages": [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "<think>\nsum\n</think>\n\n2"}, {"role": "user", "content": "2+2"}, {"role": "assistant", "reasoning_content": "again", "content": "4"}]},
    {"name": "no_thinking", "messages": [{"role": "user", "content": "1+1"}], "kwargs": {"add_generation_prompt": True, "enable_thinking": False}},
    {"name": "tools", "messages": [{"role": "user", "content": "Weather in Zürich?"},
                                   {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "id": "abc123def", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2, "units": ["C", "F"], "deep": {"a": None}}}}]},
                                   {"role": "tool", "content": "{\"t\": 21}", "tool_call_id": "abc123def"}, {"role": "assistant", "content": "21 degrees."}],
     "tools": [{"type": "function", "function": {"name": "weather", "description": "Weather of a <city> & \"days\".", "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Name"}, "days": {"type": "integer"}, "units": {"type": "array", "items": {"type": "string"}, "enum": ["C", "F"]}, "deep": {"type": ["string", "integer"]}}, "required": ["city"]}}}]},
    {"name": "tools_in_text", "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}, {"type": "function", "function": {"name": "g", "arguments": "{}"}}]}, {"role": "tool", "content": "one"}, {"role": "tool", "content": "two"}]},
    {"name": "wrong_order", "messages": [{"role": "assistant", "content": "I start"}, {"role": "user", "content": "no"}]},
    {"name": "parts", "messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " what is it? "}]}], "kwargs": {"add_generation_prompt": True}},
    {"name": "documents", "messages": [{"role": "user", "content": "Who?"}], "documents": [{"title": "A", "text": "alpha"}, {"title": "B", "text": "beta"}], "kwargs": {"add_generation_prompt": True}},
    {"name": "builtin_tools", "messages": [{"role": "user", "content": "s"}, {"role": "assistant", "tool_calls": [{"function": {"name": "brave_search", "arguments": {"query": "q", "k": "v"}}}]}, {"role": "ipython", "content": {"output": ["r"]}}], "kwargs": {"builtin_tools": ["brave_search", "code_interpreter"], "date_string": "1 Jan 2025"}},
    {"name": "empty", "messages": []},
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def engine_case(template):
    case = {"template": template}
    try:
        case["text"] = compile_template(template).render(**json.loads(json.dumps(CONTEXT)))
    except Exception as error:  # noqa: BLE001
        case["error"] = True
        print(f"{type(error).__name__}: {error}  <- {template!r}", file=sys.stderr)
    return case


def chat_case(name, source, chat):
    case = {"template": name, "chat": chat["name"]}
    try:
        texts, blocks = chat_template_utils.render_jinja_template(
            [chat["messages"]], tools=chat.get("tools"), documents=chat.get("documents"), chat_template=source,
            return_assistant_tokens_mask=True, **{**TOKENS, **chat.get("kwargs", {})})
        case["text"], case["generation"] = texts[0], [list(b) for b in blocks[0]]
    except Exception as error:  # noqa: BLE001
        raised = type(error).__name__ == "TemplateError"
        case["error"] = str(error) if raised else ""
        print(f"{type(error).__name__}: {error}  <- {name} {chat['name']}", file=sys.stderr)
    return case


def main():
    folder = pathlib.Path(__file__).parent / "chat_templates"
    sources = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))}
    result = {"context": CONTEXT, "engine": [engine_case(t) for t in SNIPPETS], "special_tokens": TOKENS, "conversations": CHATS,
              "chats": [chat_case(n, s, c) for n, s in sources.items() for c in CHATS]}
    json.dump(result, sys.stdout, ensure_ascii=False, indent=0)
    print()


if __name__ == "__main__":
    main()
