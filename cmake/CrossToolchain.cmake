# Compiles for another machine with the distribution's cross compiler: MEGALITH_CROSS_ARCH is aarch64 or x86_64. Libraries come from
# MEGALITH_SYSROOT, a folder with that machine's packages (scripts/check_arch.sh makes it), and programs run in qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${MEGALITH_CROSS_ARCH})
set(CMAKE_LIBRARY_ARCHITECTURE ${MEGALITH_CROSS_ARCH}-linux-gnu)
set(CMAKE_SYSROOT ${MEGALITH_SYSROOT})
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES MEGALITH_CROSS_ARCH MEGALITH_SYSROOT)
if(NOT CMAKE_CXX_COMPILER)
  set(CMAKE_CXX_COMPILER ${MEGALITH_CROSS_ARCH}-linux-gnu-g++)
endif()

# Programs are this machine's, everything else is that machine's. libtorch lies outside of the sysroot, under its full name.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} ${MEGALITH_SYSROOT}/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${MEGALITH_SYSROOT})

# -cpu max: with every instruction set that qemu knows.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-${MEGALITH_CROSS_ARCH};-cpu;max;-L;${MEGALITH_SYSROOT})
# Not after every link: to load libtorch takes an emulated program 15 seconds.
set(CMAKE_GTEST_DISCOVER_TESTS_DISCOVERY_MODE PRE_TEST)
