// How long the threads of computation wait awake for each other.
#pragma once

namespace ziggurat {

/// Threads of an OpenMP team wait awake for the next product, since to sleep and to be woken takes
/// longer than many a product. libgomp does so for 300,000 turns, which is 3 to 16 ms: whenever
/// another process needs a core, one thread of a team has none and the others burn theirs waiting
/// for it. This limits it to about what lies between two products.
///
/// libgomp reads its environment before main() only, so the program is started once more, in the
/// same process, with GOMP_SPINCOUNT set. Where that variable or OMP_WAIT_POLICY is set already,
/// theirs is the choice and nothing happens; neither where threads are bound to places
/// (OMP_PROC_BIND, OMP_PLACES), nor where the start fails. To be called before anything has been
/// opened or begun.
///   argv   of main()
void LimitSpinning(char** argv);

}  // namespace ziggurat
