// Which elements two strided tensors may share. Every answer is on the safe side: "disjoint" is a proof.
#pragma once

#include "core/checks.h"

namespace gemmx {

// True unless all elements of the tensor provably have different addresses. Exact except for interleaved
// strides such as sizes (3, 2) with strides (2, 3), which count as overlapping.
bool may_overlap_itself(const TensorDesc& t);

// True when the tensors provably share no byte. Decides separate address ranges, and views of one storage
// that keep apart within a common period: disjoint column ranges under one row stride, even columns beside
// odd ones, disjoint rows of every matrix of a batch.
bool provably_disjoint(const TensorDesc& x, const TensorDesc& y);

// The bytes from the first element to the end of the last one, 0 for an empty tensor; -1 when more than int64.
int64_t byte_extent(const TensorDesc& t);

}  // namespace gemmx
