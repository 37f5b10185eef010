"""Landing: changes of jobs are put into files or onto a branch, as a whole or not at all."""
