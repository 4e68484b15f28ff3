"""Tasks of software: bring the source of a package's release to the next one, judged by the next one's tests."""
