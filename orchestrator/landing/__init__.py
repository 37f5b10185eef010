"""Landing: changes of jobs are put into files, verified together, and left out if they break them."""
