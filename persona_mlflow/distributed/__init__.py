"""Several processes share one experiment through its ledger's folder, on one machine or on many.

The work is a queue of units (`units`), dearest first, that the main process writes into the ledger. Each
process claims the next units by adding an entry to a chain of files (`claims`), generates them, puts the
answers into files of its own, and claims again: first large shares, then ever smaller ones, so that all end
together, whatever each one's speed. While work is left no process waits for another, and nothing but the
shared file system is used: there is no process group that could time out or hang (pitfall X4). A process that
dies lets go of its lock or stops renewing its sign of life (`presence`), and its claims are taken over by
whoever comes next.

The main process (rank 0 of all, not of each machine) alone writes MLflow, compacts the cells and says when
the others may begin and must stop (`team`); the others generate, and say nothing (`helper`).
"""
