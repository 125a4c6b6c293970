# `cmake --install`: the `megalith` program, and a package for find_package(Megalith) with the one target
# megalith::megalith. libtorch is not part of it (make package gives a tarball with everything that runs).

set(_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Megalith)

# `cli` is the program, not the library.
get_property(_modules GLOBAL PROPERTY MEGALITH_MODULES)
list(REMOVE_ITEM _modules megalith_cli)
add_library(megalith_all INTERFACE)
set_target_properties(megalith_all PROPERTIES EXPORT_NAME megalith)
target_link_libraries(megalith_all INTERFACE ${_modules})
add_library(megalith::megalith ALIAS megalith_all)
# Programs of others find the plug-ins beside the libraries.
target_link_options(megalith_all INTERFACE "$<INSTALL_INTERFACE:LINKER:-rpath,$<INSTALL_PREFIX>/${CMAKE_INSTALL_LIBDIR}>")

install(TARGETS ${_modules} megalith_all EXPORT MegalithTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT MegalithTargets NAMESPACE megalith:: DESTINATION ${_package_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/src/megalith DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h" PATTERN "*_internal.h" EXCLUDE PATTERN cli EXCLUDE)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/third_party/gloo_declarations DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/megalith)

if(TARGET megalith)
  # DT_RPATH, not DT_RUNPATH: it also holds for the libraries of libraries, which a relocated package needs. The tarball
  # keeps only the first entry (scripts/package.sh).
  target_link_options(megalith PRIVATE -Wl,--disable-new-dtags)
  file(RELATIVE_PATH _libraries_from_bin /prefix/${CMAKE_INSTALL_BINDIR} /prefix/${CMAKE_INSTALL_LIBDIR})
  set_target_properties(megalith PROPERTIES
    INSTALL_RPATH "$ORIGIN/../lib;$ORIGIN/${_libraries_from_bin};${MEGALITH_TORCH_DIR}/lib")
  install(TARGETS megalith RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
  # The manual page and the completion scripts are written by the program itself, when it is installed.
  if(NOT CMAKE_CROSSCOMPILING)
    set(_written ${PROJECT_BINARY_DIR}/installed)
    install(CODE "
      file(MAKE_DIRECTORY \"${_written}\")
      foreach(text \"man;megalith.1\" \"completion;bash;megalith\" \"completion;zsh;_megalith\" \"completion;fish;megalith.fish\")
        list(POP_BACK text name)
        execute_process(COMMAND \"$<TARGET_FILE:megalith>\" \${text} OUTPUT_FILE \"${_written}/\${name}\" COMMAND_ERROR_IS_FATAL ANY)
      endforeach()" COMPONENT program)
    install(FILES ${_written}/megalith.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT program)
    install(FILES ${_written}/megalith DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT program)
    install(FILES ${_written}/_megalith DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions COMPONENT program)
    install(FILES ${_written}/megalith.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT program)
  endif()
endif()

include(CMakePackageConfigHelpers)
set(MEGALITH_INSTALL_INCLUDEDIR ${CMAKE_INSTALL_INCLUDEDIR})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/MegalithConfig.cmake.in ${PROJECT_BINARY_DIR}/MegalithConfig.cmake
  INSTALL_DESTINATION ${_package_dir} PATH_VARS MEGALITH_INSTALL_INCLUDEDIR NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/MegalithConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/MegalithConfig.cmake ${PROJECT_BINARY_DIR}/MegalithConfigVersion.cmake
        ${PROJECT_SOURCE_DIR}/cmake/Libtorch.cmake
        DESTINATION ${_package_dir})
