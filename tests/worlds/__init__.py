"""Simulated worlds: real code of Holdfast, a harsh environment in memory, and judges, all driven by one seed.

A world draws its sizes, its faults and every action from one random number generator that its seed starts. So a seed
repeats a world exactly, and ``WorldReport.digest`` proves it. While the world runs, judges compare everything it shows
with what Holdfast promises, and raise ``PromiseBroken`` at the first difference.

| package | real code | environment | kinds of worlds |
|---|---|---|---|
| ``log`` | pipeline, takeover, shells of nodes | store, network, clocks | ``log``, ``retention``, ``foundations`` |
| ``queue`` | the embedded queue | files that lose unsynced bytes | ``queue``, ``followers``, ``persist`` |
| ``stores`` | the state machine of the stores | its log, checkpoints | ``stores``, ``stores-small-blocks`` |
| | the stores' clock | machines with wrong clocks | ``stores-clocks`` |

**What to read first.** ``harness`` (what all worlds share), then one package: its ``__init__`` names the modules, its
``world`` is the world from start to end, and its ``promises`` (queue: ``ledger``, ``followers``, ``persisting``) says
what must hold.

**Run many worlds**: ``python -m tests.worlds queue --worlds 400 --jobs 2``. It prints what occurred and the seeds that
failed. **Replay a seed**: ``python -m tests.worlds queue --first SEED --worlds 1``. A world is one process and one
thread with virtual time, so a debugger may stop it anywhere. ``shape`` has the sizes and rates that a seed draws; to
make a failing world smaller, set some of them (``run_world(SEED, steps=6)``). Then write a plain test of what it found
in ``tests/simulation``, or record its seed there.

**Add a mutant.** A mutant is the real code with one rule taken out. It proves that a judge notices. Write the broken
function in the package's ``mutants`` and name the rule and what it replaces::

    @MUTANTS.breaks("a closed page says that it is", "_seal", Writer, focus={"page_bytes": 4096})
    def no_seal(self: Writer, page: OpenPage) -> None:
        self._progress.write_index()  # the author forgot the SEAL

``focus`` sets fields of the shape, so that the rule matters in most worlds. ``tests/simulation`` catches each mutant
within ``seeds_max`` seeds and runs the world that caught it once more without the mutant: it must keep every promise.
``python -m tests.worlds queue --worlds 0 --mutants`` shows the seed and the promise of each.
"""
