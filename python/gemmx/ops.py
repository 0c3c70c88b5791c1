"""The Python side of torch.ops.gemmx and the function gemmx.gemm.

C++ (csrc/torch/library.cpp) defines the schemas and implements them for CUDA. Here are the other dispatch keys:

    CPU       the reference, in float64
    fakes     shapes, strides and errors without data, for torch.compile, torch.export and meta tensors
    Autograd  refuses tensors that require grad, since there is no gradient; otherwise goes on below autograd. Not of
              gemm on CUDA, where it would cost 4 to 5 us a call under no_grad: C++ asks _wants_gradient in grad mode
    ADInplaceOrView  of gemm_out: tells autograd that out has changed

Without a rule of their own: torch.vmap refuses or loops as for every such op, and torch.autocast leaves dtypes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from gemmx import _C, reference
from gemmx._dtypes import DTYPES, dtype_name
from gemmx._fold import fold_leading
from gemmx._library import NAMESPACE
from gemmx._strict import refuse_slow_path, refuse_tracing, strict_is_on

Activation = Literal["none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "hardswish", "leaky_relu", "clamp"]
Precision = Literal["ieee", "tf32", "3xtf32"]
Numerics = Literal["deterministic", "batch_invariant"]
Schedule = Literal["auto", "data_parallel", "split_k", "stream_k"]

_gemm = getattr(torch.ops, NAMESPACE).gemm.default
_gemm_out = getattr(torch.ops, NAMESPACE).gemm_out.default
_grad_is_on = torch.is_grad_enabled
# The schemas' name of what gemmx.gemm calls kernel (csrc/torch/library.cpp says why).
_KERNEL = "kernel_name"


def op_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """gemmx.gemm's options under the names of torch.ops.gemmx.gemm."""
    return {_KERNEL if name == "kernel" else name: value for name, value in options.items()}


def gemm(  # noqa: PLR0917, the order of the op's schema
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    scale_d: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    activation: Activation | None = None,
    activation_args: Sequence[float] | None = None,
    out_dtype: torch.dtype | None = None,
    precision: Precision | None = None,
    numerics: Numerics | None = None,
    schedule: Schedule | None = None,
    splits: int = 0,
    kernel: str | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """D = act(alpha * (A @ B) + beta * C + bias), accumulated in float32, rounded once to D's dtype.

    Args:
        a: (M, K), (batch, M, K) or, with a 2-D b, (..., M, K); float32, float16 or bfloat16; any strides, 0 included.
        b: (K, N) or (batch, K, N), a's dtype, any strides: a weight stored (N, K) is passed as weight.t(). A 2-D
            operand beside a 3-D one is shared by all batches.
        c: Broadcasts to D's shape and never enlarges it; D's dtype or float32. Not read where beta is 0.
        bias: (N,), one value a column; D's dtype, a's dtype or float32.
        scale_a: For 8-bit types, which this version does not compute; must be None.
        scale_b: As scale_a.
        scale_d: As scale_a.
        alpha: Applied as float32. Where alpha or K is 0 the product is left out and a and b are not read.
        beta: Applied as float32; other than 1 only with a c.
        activation: none, relu, gelu (the erf form), gelu_tanh, silu, sigmoid, tanh, hardswish, leaky_relu or clamp.
        activation_args: leaky_relu: (slope,), 0.01 by default; clamp: (lo, hi). Applied as float32.
        out_dtype: D's dtype: a's, the default, or float32.
        precision: Of float32 products on CUDA: "ieee" or "tf32". None follows torch's own setting,
            torch.backends.cuda.matmul.fp32_precision, which torch.set_float32_matmul_precision and allow_tf32 set too.
        numerics: "deterministic", the default, or "batch_invariant", for float16 and bfloat16: on one GPU architecture
            a row of D has the same bits whatever M is and wherever in the batch the row stands (docs/numerics.md).
        schedule: "auto" leaves the schedule to the selector; another is honoured or refused with the reason.
        splits: Cuts of K; 0 leaves them to the selector, another number is honoured or refused with the reason.
        kernel: A kernel's name, honoured or refused with the reason; None leaves it to the selector.
        out: Receives D and is returned. D's shape, its own dtype, any strides that put no two elements at one
            address. It may be exactly c and must not overlap an input otherwise.

    Returns:
        D: (M, N), (batch, M, N) or (..., M, N), row-major contiguous unless it is out.

    Raises:
        ValueError: An argument is wrong.
        RuntimeError: The call is not supported or not built here, or a tensor requires grad while grad mode is on.
            Either is one sentence, before anything is launched.
        torch.OutOfMemoryError: There is no memory for D or for the workspace.

    Equal calls give equal bits, run after run on one GPU model, so torch.use_deterministic_algorithms has nothing to
    change. The error bound is the Numerics contract of docs/design.md. CPU tensors are computed in float64 and
    rounded once: for tests and for machines without a GPU, not for speed.
    """
    if out is not None and out_dtype is not None and out_dtype != out.dtype:
        raise ValueError(f"out_dtype: is {out_dtype} but out has dtype {out.dtype}: out decides; leave out_dtype None")
    if precision is None:
        precision = _precision_of_torch(a)
    d_shape = None
    if a.dim() > 3:
        a, c, out_folded, d_shape = fold_leading(a, b, c, out)
    else:
        out_folded = out
    tensors = (a, b, c, bias, scale_a, scale_b, scale_d)
    options: dict[str, Any] = {
        "alpha": alpha,
        "beta": beta,
        "activation": activation,
        "activation_args": activation_args,
        "precision": precision,
        "numerics": numerics,
        "schedule": schedule,
        "splits": splits,
    }
    if strict_is_on() and a.is_cuda:
        refuse_tracing()
        refuse_slow_path(check(*tensors, out=out_folded, out_dtype=out_dtype, kernel=kernel, **options), a.device)
    options[_KERNEL] = kernel
    if out_folded is not None:
        _gemm_out(*tensors, **options, out=out_folded)
        assert out is not None
        return out
    d: Tensor = _gemm(*tensors, **options, out_dtype=out_dtype)
    return d if d_shape is None else d.view(d_shape)


def _precision_of_torch(a: Tensor) -> Precision | None:
    """The setting of torch for float32 products on CUDA. It is "none" or "ieee" unless the caller allowed tf32."""
    if a.dtype == torch.float32 and a.is_cuda and _float32_precision() == "tf32":
        return "tf32"
    return None


def _float32_precision() -> str:
    setting: str = torch.backends.cuda.matmul.fp32_precision
    return setting


# Dynamo of torch 2.11 can't trace the setting's getter. It evaluates a function marked so once, while it traces, and
# guards on torch's global settings. torch.compiler.assume_constant_result sets the same mark, but imports the compiler.
setattr(_float32_precision, "_dynamo_marked_constant", True)  # noqa: B010


# ---- checks -------------------------------------------------------------------------------------------------------


def describe(tensor: Tensor) -> _C.TensorDesc:
    """The tensor as _C.check_gemm sees it. A fake or meta tensor has no address: it counts as aligned."""
    fake = tensor.is_meta or isinstance(tensor, FakeTensor)
    return _C.TensorDesc(
        dtype_name(tensor.dtype),
        tensor.device.type,
        tensor.device.index or 0,
        tensor.shape,
        tensor.stride(),
        0 if fake else tensor.data_ptr(),
    )


def check(  # noqa: PLR0917
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    scale_d: Tensor | None = None,
    *,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    **options: Any,
) -> _C.Checked:
    """_C.check_gemm, the check of every dispatch key, on tensors of concrete sizes. Options are gemmx.gemm's."""
    checked = _C.check_gemm(
        describe(a),
        describe(b),
        *(None if t is None else describe(t) for t in (c, bias, scale_a, scale_b, scale_d)),
        out=None if out is None else describe(out),
        out_dtype=None if out_dtype is None else dtype_name(out_dtype),
        **options,
    )
    if a.device.type == "cpu":
        _refuse_cuda_requests(**options)
    return checked


def _refuse_cuda_requests(kernel: str | None = None, schedule: str | None = None, splits: int = 0, **_: Any) -> None:
    """What only a CUDA kernel can honour is refused on the CPU, not ignored."""
    requests = (("kernel", kernel, (None, "")), ("schedule", schedule, (None, "", "auto")), ("splits", splits, (0,)))
    for name, value, defaults in requests:
        if value not in defaults:
            raise RuntimeError(
                f"{name}: is {value!r} but a is on cpu, where the reference runs and no kernel; leave {name} "
                f"at its default or move the tensors to cuda"
            )


def _check_symbolic(  # noqa: PLR0917
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    scale_d: Tensor | None = None,
    *,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    **options: Any,
) -> tuple[Sequence[Any], torch.dtype]:
    """D's sizes and dtype where some size is a symbol.

    The shape checks of csrc/core/checks.cpp are repeated here without fixing a symbol: an equality of two symbols
    becomes a guard, and only sizes of c are compared with a number, 1. All else is checked by _C.check_gemm on
    stand-in tensors that have small sizes in place of the real ones.
    """
    rule = "a is (M, K) or (batch, M, K) and b is (K, N) or (batch, K, N)"
    for name, x in (("a", a), ("b", b)):
        if x.dim() not in (2, 3):
            raise ValueError(f"{name}: has {x.dim()} dimensions, but {rule}")
    torch._check_value(b.shape[-2] == a.shape[-1], lambda: f"b: K is {b.shape[-2]} but a has K = {a.shape[-1]}: {rule}")
    if a.dim() == b.dim() == 3:
        torch._check_value(
            b.shape[0] == a.shape[0], lambda: f"b: batch is {b.shape[0]} but a has batch = {a.shape[0]}: {rule}"
        )
    batch = list(a.shape[:-2] or b.shape[:-2])
    sizes = [*batch, a.shape[-2], b.shape[-1]]
    if c is not None:
        _check_symbolic_c(c, sizes)
    if bias is not None:
        if bias.dim() != 1:
            raise ValueError(f"bias: has {bias.dim()} dimensions but it must be (N,): one value a column of D")
        torch._check_value(
            bias.shape[0] == sizes[-1],
            lambda: f"bias: shape is ({bias.shape[0]},) but it must be (N,) = ({sizes[-1]},)",
        )
    if out is not None:
        if out.dim() != len(sizes):
            raise ValueError(f"out: has {out.dim()} dimensions but D has {len(sizes)}")
        for have, want in zip(out.shape, sizes, strict=True):
            torch._check_value(have == want, lambda: f"out: shape is {tuple(out.shape)} but D is {tuple(sizes)}")

    if options.get("numerics") == "batch_invariant":  # whose cuts of K the stand-ins' K does not tell
        options = options | {"splits": 0}
        if options.get("schedule") == "data_parallel":
            options["schedule"] = None
    m, n, k = 3, 4, 5
    d = [2] * len(batch) + [m, n]
    checked = _C.check_gemm(
        _stand_in(a, [2, m, k][-a.dim() :]),
        _stand_in(b, [2, k, n][-b.dim() :]),
        None if c is None else _stand_in(c, d[len(d) - c.dim() :]),
        None if bias is None else _stand_in(bias, [n]),
        *(None if t is None else _stand_in(t, [1]) for t in (scale_a, scale_b, scale_d)),
        out=None if out is None else _stand_in(out, d),
        out_dtype=None if out_dtype is None else dtype_name(out_dtype),
        **options,
    )
    if a.device.type == "cpu":
        _refuse_cuda_requests(**options)
    return sizes, DTYPES[checked.d_dtype]


def _check_symbolic_c(c: Tensor, sizes: list[Any]) -> None:
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    if c.dim() > len(sizes):
        raise ValueError(f"c: has {c.dim()} dimensions but D has {len(sizes)} and c may not enlarge it")
    for have, want in zip(reversed(c.shape), reversed(sizes), strict=False):
        if not guard_or_false(have == 1):
            torch._check_value(
                have == want,
                lambda: (
                    f"c: shape is {tuple(c.shape)} but it must broadcast to D's shape {tuple(sizes)} without "
                    f"enlarging it"
                ),
            )


def _stand_in(tensor: Tensor, sizes: list[int]) -> _C.TensorDesc:
    """A contiguous tensor of these sizes with the tensor's dtype and device."""
    strides = [1] * len(sizes)
    for i in reversed(range(len(sizes) - 1)):
        strides[i] = strides[i + 1] * sizes[i + 1]
    device = tensor.device
    return _C.TensorDesc(dtype_name(tensor.dtype), device.type, device.index or 0, sizes, strides, 0)


# ---- dispatch keys ------------------------------------------------------------------------------------------------
# torch calls these with its schema's positional arguments in order and leaves out what equals a default.


def _named(options: dict[str, Any]) -> dict[str, Any]:
    """The op's options under gemmx.gemm's names."""
    if _KERNEL in options:
        options["kernel"] = options.pop(_KERNEL)
    return options


def _tensors(args: Iterable[Any], options: dict[str, Any]) -> list[Tensor]:
    return [x for x in (*args, options.get("out")) if x is not None]


def _gemm_cpu(*args: Any, **options: Any) -> Tensor:
    options = _named(options)
    return _reference(check(*args, **options), *args, **options)


def _gemm_out_cpu(*args: Any, out: Tensor, **options: Any) -> None:
    options = _named(options)
    checked = check(*args, out=out, **options)
    out.copy_(_reference(checked, *args, **options))  # D is computed whole before out, which may be c, is written


def _reference(
    checked: _C.Checked,
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    bias: Tensor | None = None,
    *_: Any,
    **options: Any,
) -> Tensor:
    invariant = checked.problem.numerics == "batch_invariant"
    compute = reference.gemm_batch_invariant if invariant else reference.gemm
    return compute(
        a,
        b,
        c,
        bias,
        alpha=options.get("alpha", 1.0),
        beta=options.get("beta", 1.0),
        activation=checked.problem.activation,
        activation_args=options.get("activation_args"),
        out_dtype=DTYPES[checked.d_dtype],
    )


def _gemm_fake(*args: Any, **options: Any) -> Tensor:
    if _grad_is_on():
        _refuse_gradients("gemm", _tensors(args, options))
    sizes, dtype = _check_fake(*args, **_named(options))
    d: Tensor = args[0].new_empty(sizes, dtype=dtype)  # row-major contiguous, as the real D
    return d


def _gemm_out_fake(*args: Any, **options: Any) -> None:
    _check_fake(*args, **_named(options))


def _check_fake(*args: Any, **options: Any) -> tuple[Sequence[Any], torch.dtype]:
    """D's sizes and dtype."""
    tensors = _tensors(args, options)
    if any(isinstance(x, torch.SymInt) for t in tensors for x in (*t.shape, *t.stride())):
        return _check_symbolic(*args, **options)
    checked = check(*args, **options)
    return checked.d_sizes, DTYPES[checked.d_dtype]


def _wants_gradient(*tensors: Tensor | None) -> bool:
    """Whether autograd would record a call on these tensors; grad mode is on."""
    forward = forward_ad._current_level >= 0
    return any(
        x.requires_grad or (forward and forward_ad.unpack_dual(x).tangent is not None)  # type: ignore[no-untyped-call]
        for x in tensors
        if x is not None
    )


def _refuse_gradients(op: str, tensors: Iterable[Tensor]) -> None:
    if any(x.requires_grad for x in tensors):
        raise RuntimeError(
            f"gemmx.{op} has no gradient yet and an argument requires grad; call it under torch.no_grad() or "
            f"torch.inference_mode(), or pass .detach()"
        )


def _refuse_tangents(op: str, tensors: Iterable[Tensor]) -> None:
    for x in tensors:
        if forward_ad.unpack_dual(x).tangent is not None:  # type: ignore[no-untyped-call]
            raise RuntimeError(
                f"gemmx.{op} has no forward-mode gradient and an argument of shape {tuple(x.shape)} has a tangent; "
                f"pass its primal"
            )


# redispatch_boxed with the remaining keys takes 5 us, one more
# microsecond with an _AutoDispatchBelowAutograd guard around it, which nothing below needs (torch 2.14, x86 core).
_redispatch_gemm = _gemm._handle.redispatch_boxed
_redispatch_gemm_out = _gemm_out._handle.redispatch_boxed
_below_autograd = torch._C._after_autograd_keyset
_below_inplace = torch._C._after_ADInplaceOrView_keyset


def _gemm_autograd(keys: torch._C.DispatchKeySet, *args: Any, **options: Any) -> Tensor:
    if _grad_is_on():
        _refuse_gradients("gemm", _tensors(args, options))
    if forward_ad._current_level >= 0:
        _refuse_tangents("gemm", _tensors(args, options))
    d: Tensor = _redispatch_gemm(keys & _below_autograd, *args, **options)
    return d


def _gemm_out_autograd(keys: torch._C.DispatchKeySet, *args: Any, **options: Any) -> None:
    if _grad_is_on():
        _refuse_gradients("gemm_out", _tensors(args, options))
    if forward_ad._current_level >= 0:
        _refuse_tangents("gemm_out", _tensors(args, options))
    _gemm_out_inplace(keys, *args, **options)


def _gemm_out_inplace(keys: torch._C.DispatchKeySet, *args: Any, **options: Any) -> None:
    """Counts out's version up, so that autograd notices when it needed the old values."""
    torch.autograd.graph.increment_version(options["out"])
    _redispatch_gemm_out(keys & _below_inplace, *args, **options)


_C.set_out_of_memory_class(torch.OutOfMemoryError)

_library = torch.library.Library(NAMESPACE, "IMPL")  # type: ignore[no-untyped-call]


def _register(op: str, kernel: Callable[..., Any], key: str, with_keys: bool = False) -> None:
    # Where torch.compile gave up on the caller it would trace this function, a kernel like any in C++, and what it
    # calls. torch._dynamo.disable does the same, at the price of an import of seconds and a microsecond a call.
    skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    set_code_exec_strategy(kernel.__code__, skip)
    _library.impl(op, kernel, key, with_keyset=with_keys)  # type: ignore[no-untyped-call]


_register("gemm", _gemm_cpu, "CPU")
_register("gemm_out", _gemm_out_cpu, "CPU")
_register("gemm", _gemm_autograd, "AutogradCPU", with_keys=True)
_register("_wants_gradient", _wants_gradient, "CompositeExplicitAutograd")
_register("gemm_out", _gemm_out_autograd, "Autograd", with_keys=True)
_register("gemm_out", _gemm_out_inplace, "ADInplaceOrView", with_keys=True)
torch.library.register_fake(f"{NAMESPACE}::gemm", _gemm_fake, lib=_library)
torch.library.register_fake(f"{NAMESPACE}::gemm_out", _gemm_out_fake, lib=_library)
