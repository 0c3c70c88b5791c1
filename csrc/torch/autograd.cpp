#include "torch/autograd.h"

#include <array>
#include <stdexcept>
#include <string>

#include "core/nested_call.h"
#include "torch/gemm.h"

namespace gemmx::torch_ops {
namespace {

#define GEMMX_OP(NAME) C10_STRINGIZE(GEMMX_NAMESPACE) "::" NAME

// A handle that a called op will own.
StableIValue share(AtenTensorHandle tensor) {
  AtenTensorHandle handle = nullptr;
  check_torch(aoti_torch_new_tensor_handle(tensor, &handle), "sharing a tensor");
  return torch::stable::detail::from(handle);
}
StableIValue share_optional(AtenTensorHandle tensor) {
  return tensor != nullptr ? torch::stable::detail::from(new StableIValue(share(tensor)))
                           : torch::stable::detail::from(std::nullopt);
}

// An argument of the stack, which keeps it: converting an optional takes its box apart, so that a new one is put there.
AtenTensorHandle peek(const StableIValue& value) { return torch::stable::detail::to<AtenTensorHandle>(value); }
AtenTensorHandle peek_optional(StableIValue& value) {
  const auto handle = torch::stable::detail::to<OptionalHandle>(value);
  value = torch::stable::detail::from(handle);
  return handle.value_or(nullptr);
}

// The op takes what the stack holds and leaves its result there. No data is touched, so that fake and functional
// tensors pass as well.
void call(const char* op, StableIValue* stack) {
  NestedCall nested;
  if (torch_call_dispatcher(op, "", stack, TORCH_ABI_VERSION) == AOTI_TORCH_SUCCESS) return;
  nested.rethrow_kept();
  throw std::runtime_error(std::string(op) + " failed inside torch");
}

// Whether autograd would record a call on these tensors, null ones left out. Only grad mode pays for asking.
bool wants_gradient(AtenTensorHandle a, AtenTensorHandle b, AtenTensorHandle c, AtenTensorHandle bias) {
  std::array<StableIValue, 4> arguments{share(a), share(b), share_optional(c), share_optional(bias)};
  call(GEMMX_OP("_wants_gradient"), arguments.data());
  return torch::stable::detail::to<bool>(arguments[0]);
}

}  // namespace

void gemm_autograd(StableIValue* stack, uint64_t, uint64_t) {
  // a, b, c, bias
  const bool record = aoti_torch_grad_mode_is_enabled() &&
                      wants_gradient(peek(stack[0]), peek(stack[1]), peek_optional(stack[2]), peek_optional(stack[3]));
  call(record ? GEMMX_OP("_gemm_recorded") : GEMMX_OP("_gemm"), stack);
}

void gemm_gated_autograd(StableIValue* stack, uint64_t, uint64_t) {
  // a, b, bias
  const bool record = aoti_torch_grad_mode_is_enabled() &&
                      wants_gradient(peek(stack[0]), peek(stack[1]), nullptr, peek_optional(stack[2]));
  call(record ? GEMMX_OP("_gemm_gated_recorded") : GEMMX_OP("_gemm_gated"), stack);
}

}  // namespace gemmx::torch_ops
