"""Landing: how the changes of a run get into the folder that it was started for."""
