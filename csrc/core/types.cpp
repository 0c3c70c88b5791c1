#include "core/types.h"

#include <array>
#include <cstddef>

namespace gemmx {
namespace {

// Names in the order of the enumerators, so that an enumerator indexes its name.
constexpr std::array<std::string_view, 15> kDTypes = {"none", "f32", "f16", "bf16", "f64",  "e4m3",      "e5m2", "u8",
                                                      "i8",   "i16", "i32", "i64",  "bool", "complex64", "other"};
constexpr std::array<std::string_view, 4> kMajors = {"none", "k", "m", "n"};
constexpr std::array<std::string_view, 3> kScalarClasses = {"zero", "one", "other"};
constexpr std::array<std::string_view, kActivationCount> kActivations = {
    "none", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "hardswish", "leaky_relu", "clamp"};
constexpr std::array<std::string_view, 4> kSchedules = {"auto", "data_parallel", "split_k", "stream_k"};
constexpr std::array<std::string_view, 3> kPrecisions = {"ieee", "tf32", "3xtf32"};
constexpr std::array<std::string_view, 2> kNumerics = {"deterministic", "batch_invariant"};
constexpr std::array<std::string_view, 2> kRasterOrders = {"along_m", "along_n"};

static_assert(kDTypes[static_cast<size_t>(DType::other)] == "other");
static_assert(kMajors[static_cast<size_t>(Major::n)] == "n");
static_assert(kActivations[static_cast<size_t>(Activation::clamp)] == "clamp");
static_assert(kSchedules[static_cast<size_t>(Schedule::stream_k)] == "stream_k");

template <typename Enum, size_t kCount>
std::string_view name_in(const std::array<std::string_view, kCount>& names, Enum value) {
  const auto index = static_cast<size_t>(value);
  return index < kCount ? names[index] : std::string_view("invalid");
}

template <typename Enum, size_t kCount>
std::optional<Enum> parse_in(const std::array<std::string_view, kCount>& names, std::string_view text) {
  for (size_t i = 0; i < kCount; ++i) {
    if (names[i] == text) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

}  // namespace

std::string_view name(DType x) { return name_in(kDTypes, x); }
std::string_view name(Major x) { return name_in(kMajors, x); }
std::string_view name(ScalarClass x) { return name_in(kScalarClasses, x); }
std::string_view name(Activation x) { return name_in(kActivations, x); }
std::string_view name(Schedule x) { return name_in(kSchedules, x); }
std::string_view name(Precision x) { return name_in(kPrecisions, x); }
std::string_view name(Numerics x) { return name_in(kNumerics, x); }
std::string_view name(RasterOrder x) { return name_in(kRasterOrders, x); }

std::optional<DType> parse_dtype(std::string_view text) { return parse_in<DType>(kDTypes, text); }
std::optional<Activation> parse_activation(std::string_view text) { return parse_in<Activation>(kActivations, text); }
std::optional<Schedule> parse_schedule(std::string_view text) { return parse_in<Schedule>(kSchedules, text); }
std::optional<Precision> parse_precision(std::string_view text) { return parse_in<Precision>(kPrecisions, text); }
std::optional<Numerics> parse_numerics(std::string_view text) { return parse_in<Numerics>(kNumerics, text); }
std::optional<RasterOrder> parse_raster_order(std::string_view text) {
  return parse_in<RasterOrder>(kRasterOrders, text);
}

}  // namespace gemmx
