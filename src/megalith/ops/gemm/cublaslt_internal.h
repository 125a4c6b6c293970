// The functions of cuBLASLt, for gemm_cublaslt.cc. The library is the one that libtorch has loaded; it is found by its
// name, so that nothing has to be linked.
#pragma once

#include <cublasLt.h>
#include <dlfcn.h>

namespace megalith::ops::cublaslt {

#define MEGALITH_TEXT_OF(x) #x
#define MEGALITH_TEXT(x) MEGALITH_TEXT_OF(x)
constexpr const char* kLibrary = "libcublasLt.so." MEGALITH_TEXT(CUBLAS_VER_MAJOR);
#undef MEGALITH_TEXT
#undef MEGALITH_TEXT_OF

// The functions of cuBLASLt that are used here, found in the library that is already loaded.
struct Library {
#define MEGALITH_CUBLASLT_FUNCTIONS(each)                                                                           \
  each(cublasLtCreate) each(cublasLtMatmul) each(cublasLtMatmulAlgoCheck) each(cublasLtMatmulAlgoGetHeuristic)      \
      each(cublasLtMatmulDescCreate) each(cublasLtMatmulDescDestroy) each(cublasLtMatmulDescSetAttribute)           \
          each(cublasLtMatrixLayoutCreate) each(cublasLtMatrixLayoutDestroy) each(cublasLtMatrixLayoutSetAttribute) \
              each(cublasLtMatmulPreferenceCreate) each(cublasLtMatmulPreferenceDestroy)                            \
                  each(cublasLtMatmulPreferenceSetAttribute)
#define MEGALITH_MEMBER(name) decltype(&::name) name = nullptr;
  MEGALITH_CUBLASLT_FUNCTIONS(MEGALITH_MEMBER)
#undef MEGALITH_MEMBER

  bool complete = false;

  Library() {
    void* const handle = dlopen(kLibrary, RTLD_NOLOAD | RTLD_LAZY);
    if (handle == nullptr) return;
    complete = true;
#define MEGALITH_FIND(name)                                      \
  name = reinterpret_cast<decltype(name)>(dlsym(handle, #name)); \
  complete = complete && name != nullptr;
    MEGALITH_CUBLASLT_FUNCTIONS(MEGALITH_FIND)
#undef MEGALITH_FIND
#undef MEGALITH_CUBLASLT_FUNCTIONS
  }
};

inline const Library& library() {
  static const Library found;
  return found;
}

inline bool done(cublasStatus_t status) { return status == CUBLAS_STATUS_SUCCESS; }

}  // namespace megalith::ops::cublaslt
