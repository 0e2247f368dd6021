// Replaying programs: runs, who uses what meanwhile, and the end of the interpreter. run() keeps the GIL only
// to look at its arguments.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <system_error>

#include "bind/bound_program.h"

namespace nb = nanobind;

namespace finback {
namespace {

// ---- runs in progress and the end of the interpreter --------------------------------------------

// A thread that asks for the GIL while the interpreter is finalised is ended by CPython inside our frame,
// which C++ answers with abort(). So close_runs(), called at exit while all is well, turns new runs away,
// stops the ones in progress and waits until they have the GIL back.
std::atomic<bool> closing{false};
std::atomic<int> runs{0};

bool poll_closing() { return closing.load(std::memory_order_relaxed); }

// On Python's main thread: runs the signal handlers. A handler that raises (Ctrl-C) stops the run.
bool poll_signals() {
    const nb::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0 || poll_closing();
}

void close_runs() {
    closing.store(true);
    const nb::gil_scoped_release free;
    for (int n; (n = runs.load()) != 0;) runs.wait(n);
}

}  // namespace

// Marks what a run reads, so that nobody changes it meanwhile. Made and ended under the GIL.
class BoundProgram::InUse {
  public:
    InUse(BoundProgram& p, BoundBatch& b) : program_(p), batch_(b) { change(1); }
    ~InUse() { change(-1); }
    InUse(const InUse&) = delete;
    InUse& operator=(const InUse&) = delete;

  private:
    void change(int by) {
        program_.running_ += by;
        batch_.running += by;
        for (const nb::object& s : batch_.sequences) nb::cast<BoundSequence&>(s).running += by;
        if (runs.fetch_add(by) + by == 0) runs.notify_all();
    }
    BoundProgram& program_;
    BoundBatch& batch_;
};

std::pair<RunResult, std::vector<int32_t>> BoundProgram::run(BoundBatch& b, bool on_main_thread) {
    require(b.batch.n_rows >= 1, "the batch is empty");
    require(b.batch.n_rows <= rows(), "the batch has more rows than the program's limit");
    require(b.batch.logit_rows.size() <= static_cast<size_t>(logit_rows()),
            "more logits than the program's limit");
    require(b.vocab <= vocab_, "the batch is of another vocabulary");
    check_runnable(b, layout_, max_context_);
    std::vector<int32_t> bad_rows;
    if (closing.load()) return {RunResult::INTERRUPTED, bad_rows};
    const InUse in_use(*this, b);
    RunResult result;
    {
        const nb::gil_scoped_release free;
        result =
            program_.run(b.batch, arena_.data(), on_main_thread ? poll_signals : poll_closing, &bad_rows);
    }
    if (result == RunResult::INTERRUPTED && PyErr_Occurred()) throw nb::python_error();
    return {result, std::move(bad_rows)};
}

void bind_program(nb::module_& m) {
    nb::enum_<RunResult>(m, "RunResult")
        .value("OK", RunResult::OK)
        .value("BAD_ROW", RunResult::BAD_ROW)
        .value("INTERRUPTED", RunResult::INTERRUPTED)
        .value("FORKED", RunResult::FORKED);
    bind_scratch(m);
    m.def("close_runs", &close_runs);
    nb::class_<BoundProgram> c(m, "Program");
    c.def(
        "__init__",
        [](BoundProgram* self, const std::string& isa, int threads, int32_t max_rows, int32_t max_logit_rows,
           int64_t max_context, int32_t vocab, nb::object arena, nb::object layout) {
            try {
                new (self) BoundProgram(isa, threads, max_rows, max_logit_rows, max_context, vocab,
                                        std::move(arena), std::move(layout));
            } catch (const std::system_error& error) {  // the system refuses another thread
                PyErr_SetString(PyExc_OSError, error.what());
                throw nb::python_error();
            }
        },
        nb::arg("isa"), nb::arg("threads"), nb::arg("max_rows"), nb::arg("max_logit_rows"),
        nb::arg("max_context"), nb::arg("vocab"), nb::arg("arena"), nb::arg("layout"));
    bind_add_ops(c);
    c.def("op_names", &BoundProgram::op_names);
    c.def("changed_file", &BoundProgram::changed_file);
    c.def("run", &BoundProgram::run, nb::arg("batch"), nb::arg("on_main_thread"));
}

}  // namespace finback
