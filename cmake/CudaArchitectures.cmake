# Sets MEGALITH_CUDA_ARCHITECTURES, the GPUs that the CUDA kernels are compiled for, where the user has not: those of this
# machine, because each of them costs compile time; without a GPU to ask, all that are supported.

# megalith_gpu_architectures(OUT): the compute capabilities of this machine's GPUs, as "80;90"; empty when nvidia-smi does not
# tell.
function(megalith_gpu_architectures out)
  set(${out} "" PARENT_SCOPE)
  find_program(MEGALITH_NVIDIA_SMI nvidia-smi)
  mark_as_advanced(MEGALITH_NVIDIA_SMI)
  if(NOT MEGALITH_NVIDIA_SMI)
    return()
  endif()
  execute_process(COMMAND ${MEGALITH_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE answer RESULT_VARIABLE code ERROR_QUIET)
  if(NOT code EQUAL 0)
    return()
  endif()
  string(REGEX MATCHALL "[0-9]+\\.[0-9]+" capabilities "${answer}")
  list(TRANSFORM capabilities REPLACE "\\." "")
  list(REMOVE_DUPLICATES capabilities)
  list(SORT capabilities COMPARE NATURAL)
  set(${out} "${capabilities}" PARENT_SCOPE)
endfunction()

if(MEGALITH_CUDA AND NOT MEGALITH_CUDA_ARCHITECTURES)
  megalith_gpu_architectures(_architectures)
  if(_architectures)
    message(STATUS "CUDA kernels for the GPUs of this machine: ${_architectures}")
  else()
    set(_architectures "80;90;100")
  endif()
  set(MEGALITH_CUDA_ARCHITECTURES "${_architectures}" CACHE STRING
      "GPUs to compile the CUDA kernels for, as CMAKE_CUDA_ARCHITECTURES; by default those of this machine" FORCE)
endif()
