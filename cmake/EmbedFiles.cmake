# cmake -DOUTPUT=x.cc -DNAMESPACE=a::b -DHEADER=path.h -DFILES="a.html;b.js" -P EmbedFiles.cmake
#
# Writes a C++ source that defines each file's bytes as a std::string_view called after the file (a.html: a_html), as the
# header declares them.
set(text "// Made by cmake/EmbedFiles.cmake.\n#include \"${HEADER}\"\n\nnamespace ${NAMESPACE} {\n")
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  string(REPLACE "." "_" name ${name})
  file(READ ${file} bytes HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${bytes}")
  string(APPEND text "static const char ${name}_bytes[] = {${bytes}'\\0'};\n"
                     "const std::string_view ${name}{${name}_bytes, sizeof(${name}_bytes) - 1};\n")
endforeach()
string(APPEND text "}  // namespace ${NAMESPACE}\n")
file(WRITE ${OUTPUT} "${text}")
