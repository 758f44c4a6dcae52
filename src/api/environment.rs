//! What the agent finds in its environment besides its own variables: where the relay is. Pure, and the same in a pod and
//! in a local sandbox.

use super::{InputName, layout};

/// An input, as far as its environment is concerned.
#[derive(Debug, Clone, Copy)]
pub struct FetchableInput<'a> {
    /// Its name.
    pub name: &'a InputName,
    /// The address that `origin` has.
    pub origin: &'a str,
}

/// The variables that lead the agent's programs to the relay: the proxy for everything, and the relay itself for
/// `git fetch` of the inputs given. Addresses, not names: there is no DNS in a sandbox.
#[must_use]
pub fn relay_environment(inputs: &[FetchableInput<'_>]) -> Vec<(String, String)> {
    let relay = format!("http://127.0.0.1:{}", layout::RELAY_PORT);
    let mut all: Vec<(String, String)> = Vec::new();
    for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        all.push((proxy.to_ascii_lowercase(), relay.clone()));
        all.push((proxy.to_owned(), relay.clone()));
    }
    for no_proxy in ["NO_PROXY", "no_proxy"] {
        all.push((no_proxy.to_owned(), "127.0.0.1,localhost".to_owned()));
    }
    for (number, input) in inputs.iter().enumerate() {
        all.push((
            format!("GIT_CONFIG_KEY_{number}"),
            format!("url.{relay}/git/{}.insteadOf", input.name),
        ));
        all.push((
            format!("GIT_CONFIG_VALUE_{number}"),
            input.origin.to_owned(),
        ));
    }
    if !inputs.is_empty() {
        all.push(("GIT_CONFIG_COUNT".to_owned(), inputs.len().to_string()));
    }
    all.push(("GIT_TERMINAL_PROMPT".to_owned(), "0".to_owned()));
    all.push(("SANDBOXRUN_RELAY".to_owned(), relay));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fetches_of_an_input_go_to_the_relay() {
        let name = "app".parse().unwrap();
        let all = relay_environment(&[FetchableInput {
            name: &name,
            origin: "https://h/a.git",
        }]);
        let value = |key: &str| all.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
        assert_eq!(value("GIT_CONFIG_COUNT"), Some("1"));
        assert_eq!(
            value("GIT_CONFIG_KEY_0"),
            Some("url.http://127.0.0.1:7070/git/app.insteadOf")
        );
        assert_eq!(value("GIT_CONFIG_VALUE_0"), Some("https://h/a.git"));
        assert_eq!(value("https_proxy"), Some("http://127.0.0.1:7070"));
    }
}
