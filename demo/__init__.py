"""The main job: real training on nodes that come and go, checked and reported."""
