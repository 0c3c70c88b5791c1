#include "core/nested_call.h"

#include <utility>

namespace gemmx {
namespace {

thread_local int depth = 0;
thread_local std::exception_ptr kept;

}  // namespace

NestedCall::NestedCall() {
  ++depth;
  kept = nullptr;
}

NestedCall::~NestedCall() {
  if (--depth == 0) kept = nullptr;
}

void NestedCall::rethrow_kept() {
  if (kept) std::rethrow_exception(std::exchange(kept, nullptr));
}

void keep_error(std::exception_ptr error) {
  if (depth > 0) kept = std::move(error);
}

}  // namespace gemmx
