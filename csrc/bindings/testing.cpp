#include "bindings/testing.h"

#include "bindings/bindings.h"
#include "core/out_of_memory.h"
#include "device/mainloop/operand_tile.cuh"
#include "device/scheduler/k_cuts.cuh"
#include "device/scheduler/stream_k.cuh"
#include "device/scheduler/tile_order.cuh"
#include "device/scheduler/tile_scheduler.cuh"
#include "device/swizzle.cuh"

namespace gemmx::bindings {

void bind_testing(py::module_& m) {
  using device::CopyMap;
  using device::OperandTile;
  using device::TileScheduler;
  py::module_ t = m.def_submodule(
      "testing", "Index functions of the device code, compiled for the host, and what only a full GPU would show.");

  t.def("throw_allocation_failed", &throw_allocation_failed, py::arg("what"), py::arg("bytes"), py::arg("device_index"),
        "What an op does when torch's allocator fails.");
  t.def("swizzled_chunk", &device::swizzled_chunk, py::arg("row"), py::arg("chunk"), py::arg("chunks_per_row"));
  t.def("valid_bytes", &device::valid_bytes, py::arg("byte"), py::arg("row_end"), py::arg("vector"));

  py::class_<OperandTile>(t, "OperandTile")
      .def(
          py::init([](int extent_mn, int extent_k, bool k_major) { return OperandTile{extent_mn, extent_k, k_major}; }),
          py::arg("extent_mn"), py::arg("extent_k"), py::arg("k_major"))
      .def_property_readonly("rows", &OperandTile::rows)
      .def_property_readonly("row_bytes", &OperandTile::row_bytes)
      .def_property_readonly("chunks_per_row", &OperandTile::chunks_per_row)
      .def_property_readonly("bytes", &OperandTile::bytes)
      .def("offset", &OperandTile::offset, py::arg("row"), py::arg("byte"))
      .def("lane_offset", &OperandTile::lane_offset, py::arg("lane"), py::arg("mn"), py::arg("mn_first"))
      .def("block_offset", &OperandTile::block_offset, py::arg("lane_offset"), py::arg("block"), py::arg("step"));

  py::class_<CopyMap>(t, "CopyMap")
      .def(py::init([](OperandTile tile, int threads, int vector) { return CopyMap{tile, threads, vector}; }),
           py::arg("tile"), py::arg("threads"), py::arg("vector"))
      .def_property_readonly("rows_per_pass", &CopyMap::rows_per_pass)
      .def_property_readonly("passes", &CopyMap::passes)
      .def("row", &CopyMap::row, py::arg("thread"))
      .def("byte", &CopyMap::byte, py::arg("thread"))
      .def("even", &CopyMap::even);

  py::class_<TileScheduler>(t, "TileScheduler")
      .def(py::init([](int64_t rows, int64_t columns, int64_t splits, int tile_m, int tile_n, const std::string& raster,
                       int swizzle) {
             return device::make_tile_scheduler(rows, columns, splits, tile_m, tile_n,
                                                parse(parse_raster_order(raster), "raster", raster), swizzle);
           }),
           py::arg("m"), py::arg("n"), py::arg("splits"), py::arg("tile_m"), py::arg("tile_n"), py::arg("raster"),
           py::arg("swizzle"))
      .def_readonly("tiles_m", &TileScheduler::tiles_m)
      .def_readonly("tiles_n", &TileScheduler::tiles_n)
      .def(
          "coord",
          [](const TileScheduler& s, uint32_t index) {
            const device::TileCoord c = s.coord(index);
            return py::make_tuple(c.batch, c.split, c.m, c.n);
          },
          py::arg("index"), "(batch, split, tile_m, tile_n) of a CTA.");
  t.def("cta_count", &device::cta_count, py::arg("m"), py::arg("n"), py::arg("batch"), py::arg("splits"),
        py::arg("tile_m"), py::arg("tile_n"));
  t.def(
      "tile_order",
      [](int64_t rows, int64_t columns, int tile_m, int tile_n, const std::string& raster, int swizzle) {
        const device::TileOrder order = device::make_tile_order(
            rows, columns, tile_m, tile_n, parse(parse_raster_order(raster), "raster", raster), swizzle);
        py::list tiles;
        for (uint32_t i = 0; i < order.bands.tiles_m * order.bands.tiles_n; ++i) {
          const device::TileCoord c = order.coord(i);
          tiles.append(py::make_tuple(c.m, c.n));
        }
        return tiles;
      },
      py::arg("m"), py::arg("n"), py::arg("tile_m"), py::arg("tile_n"), py::arg("raster"), py::arg("swizzle"),
      "(tile_m, tile_n) of every place of the order.");
  using device::StreamK;
  t.def("stream_k_counts", &device::stream_k_counts, py::arg("k_tiles"), py::arg("workers"));
  py::class_<StreamK>(t, "StreamK")
      .def(py::init([](uint32_t tiles, int64_t k_tiles, int workers) {
             return device::make_stream_k(tiles, k_tiles, workers);
           }),
           py::arg("tiles"), py::arg("k_tiles"), py::arg("workers"))
      .def_readonly("first", &StreamK::first)
      .def_readonly("tiles", &StreamK::tiles)
      .def_readonly("workers", &StreamK::workers)
      .def_property_readonly("slots", &StreamK::slots)
      .def("begin", &StreamK::begin, py::arg("worker"))
      .def("units_of", &StreamK::units_of, py::arg("worker"))
      .def("worker_of", &StreamK::worker_of, py::arg("unit"))
      .def(
          "part",
          [](const StreamK& s, uint32_t worker, uint32_t unit, uint32_t left) {
            const device::StreamKPart p = s.part(worker, unit, left);
            return py::make_tuple(p.tile, p.k_begin, p.k_tiles, p.slot);
          },
          py::arg("worker"), py::arg("unit"), py::arg("left"), "(tile, first K tile, K tiles, slot) of a part.");
  t.def(
      "k_cut_tiles",
      [](int64_t k, int64_t splits, int tile_k) {
        const device::KCuts cuts = device::make_k_cuts(k, 2, splits, tile_k);
        std::vector<uint32_t> begins;
        for (uint32_t i = 0; i <= splits; ++i) begins.push_back(cuts.begin(i));
        return begins;
      },
      py::arg("k"), py::arg("splits"), py::arg("tile_k"));
  t.attr("max_splits_of_grid") = device::kMaxSplits;
  t.def(
      "fast_divide", [](uint32_t n, uint32_t divisor) { return device::FastDivisor(divisor).divide(n); }, py::arg("n"),
      py::arg("divisor"));
  t.attr("hilbert") = device::kHilbert;
  t.attr("max_grid_x") = device::kMaxGridX;
}

}  // namespace gemmx::bindings
