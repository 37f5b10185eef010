"""Landing: changes of jobs are put into files, verified together, or left out."""
