//! Everything on the host side: the controller, the gateway and the command line.

fn main() {}
