//! Everything that runs inside a pod.

fn main() {}
