//! Everything on the host side: the controller, the gateway and the command line.

use std::path::Path;
use std::process::ExitCode;

use sandboxrun::inputs::credential_helper;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        [credential_helper::COMMAND, socket, action] => {
            credential_helper::main(Path::new(socket), action)
        }
        _ => ExitCode::SUCCESS,
    }
}
