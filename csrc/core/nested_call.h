// Errors of ops that ops call. torch's stable ABI makes a status of an exception, so that its type and, up to torch
// 2.11, its sentence are lost. What fails inside keeps its exception here, and the caller throws it again.
#pragma once

#include <exception>

#include "core/types.h"

namespace gemmx {

// For as long as it lives this thread keeps the errors of the ops called inside.
class NestedCall {
 public:
  NestedCall();
  ~NestedCall();
  NestedCall(const NestedCall&) = delete;
  NestedCall& operator=(const NestedCall&) = delete;

  // Throws the last error that was kept, if any.
  void rethrow_kept();
};

// Keeps the exception where a NestedCall of this thread waits for it. Python kernels come here through _C.
GEMMX_API void keep_error(std::exception_ptr error);

// Runs f, keeping what it throws.
template <class F>
auto keeping_errors(const F& f) {
  try {
    return f();
  } catch (...) {
    keep_error(std::current_exception());
    throw;
  }
}

}  // namespace gemmx
