#!/usr/bin/env bash
# first_hour.sh MEGALITH ROOT FILE…: the commands of the pages in order, as in a bare container: a user without rights, whose
# home is / and cannot be written, and no variables but PATH. Run by root it gives its rights away.
set -euo pipefail
as_nobody=()
[ "$(id -u)" != 0 ] || as_nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs)
if "${as_nobody[@]}" test -w /; then
  echo "first_hour.sh: / can be written by this user" >&2
  exit 2
fi
exec "${as_nobody[@]}" env -i PATH="$PATH" HOME=/ bash "$(dirname "${BASH_SOURCE[0]}")/run_commands.sh" "$@"
