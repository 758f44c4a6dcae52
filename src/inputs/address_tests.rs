//! The address guard: what is closed, in every spelling and form, and what opens it.

use std::net::Ipv4Addr;

use super::*;
use proptest::prelude::*;
use rstest::rstest;

/// Names that lead where the test says.
struct Fixed(Vec<IpAddr>);

impl Names for Fixed {
    fn lookup<'a>(&'a self, _: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(std::future::ready(Ok(self.0.clone())))
    }
}

fn guard(exceptions: &[&str], addresses: &[&str]) -> AddressGuard {
    let settings = Settings {
        address_exceptions: exceptions
            .iter()
            .map(|text| text.parse().unwrap())
            .collect(),
        always_refused: vec!["10.96.0.1".parse().unwrap()],
        ..Settings::new("unused")
    };
    let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
    AddressGuard::new(&settings, Arc::new(Fixed(addresses)))
}

#[rstest]
#[case::public("8.8.8.8", None)]
#[case::public_v6("2606:4700::1111", None)]
#[case::nat64_of_a_public_one("64:ff9b::808:808", None)]
#[case::mapped_public("::ffff:8.8.8.8", None)]
#[case::unspecified("0.0.0.0", Some(Closed::Unspecified))]
#[case::this_network("0.1.2.3", Some(Closed::Unspecified))]
#[case::loopback("127.8.9.1", Some(Closed::Loopback))]
#[case::ten("10.0.0.1", Some(Closed::Private))]
#[case::first_of_172("172.16.0.0", Some(Closed::Private))]
#[case::last_of_172("172.31.255.255", Some(Closed::Private))]
#[case::after_172("172.32.0.0", None)]
#[case::home("192.168.1.1", Some(Closed::Private))]
#[case::shared("100.64.0.1", Some(Closed::Shared))]
#[case::after_shared("100.128.0.1", None)]
#[case::metadata("169.254.169.254", Some(Closed::LinkLocal))]
#[case::metadata_of_azure("168.63.129.16", Some(Closed::Metadata))]
#[case::metadata_of_alibaba("100.100.100.200", Some(Closed::Shared))]
#[case::multicast("224.0.0.1", Some(Closed::Multicast))]
#[case::broadcast("255.255.255.255", Some(Closed::Multicast))]
#[case::documentation("192.0.2.1", Some(Closed::Reserved))]
#[case::documentation_three("203.0.113.9", Some(Closed::Reserved))]
#[case::benchmarks("198.19.0.1", Some(Closed::Reserved))]
#[case::future("240.0.0.1", Some(Closed::Reserved))]
#[case::v6_unspecified("::", Some(Closed::Unspecified))]
#[case::v6_loopback("::1", Some(Closed::Loopback))]
#[case::mapped_loopback("::ffff:127.0.0.1", Some(Closed::Loopback))]
#[case::mapped_metadata("::ffff:169.254.169.254", Some(Closed::LinkLocal))]
#[case::compatible("::10.0.0.1", Some(Closed::Reserved))]
#[case::nat64_of_a_private_one("64:ff9b::a00:1", Some(Closed::Private))]
#[case::local_nat64("64:ff9b:1::1", Some(Closed::Reserved))]
#[case::six_to_four_of_a_private_one("2002:0a00:0001::", Some(Closed::Private))]
#[case::isatap_of_a_private_one("2606:4700::5efe:a00:1", Some(Closed::Private))]
#[case::teredo("2001:0:1::", Some(Closed::Reserved))]
#[case::documentation_v6("2001:db8::1", Some(Closed::Reserved))]
#[case::new_documentation_v6("3fff:fff::1", Some(Closed::Reserved))]
#[case::unique_local("fd00:ec2::254", Some(Closed::Private))]
#[case::site_local("fec0::1", Some(Closed::Private))]
#[case::link_local_v6("fe80::1", Some(Closed::LinkLocal))]
#[case::multicast_v6("ff02::1", Some(Closed::Multicast))]
#[case::api_server("10.96.0.1", Some(Closed::ApiServer))]
fn t08_closed_addresses_are_refused_in_every_form(
    #[case] address: &str,
    #[case] want: Option<Closed>,
) {
    let checked = guard(&[], &[]).check("host", address.parse().unwrap(), 443);
    let kind = checked.err().map(|error| match error {
        AddressError::Refused { kind, .. } => kind,
        error @ (AddressError::NotFound { .. } | AddressError::TimedOut { .. }) => {
            panic!("{error}")
        }
    });
    assert_eq!(kind, want);
}

#[rstest]
#[case("127.0.0.1")]
#[case("127.1")]
#[case("127.0.1")]
#[case("2130706433")]
#[case("0x7f.1")]
#[case("0X7F000001")]
#[case("0177.0.0.1")]
#[case("017700000001")]
#[case("127.0.0.1.")]
#[case("[::1]")]
#[case("::1")]
#[case("[::ffff:127.0.0.1]")]
#[case("::ffff:7f00:1")]
#[case("[::1%25lo]")]
fn t08_an_address_is_known_in_every_spelling(#[case] host: &str) {
    let checked = guard(&[], &[]).check_literal(host, 443);
    let loopback = Err(AddressError::Refused {
        host: host.to_owned(),
        address: literal(host).unwrap(),
        kind: Closed::Loopback,
        port: 443,
    });
    assert_eq!(checked, loopback);
}

#[rstest]
#[case::a_name("git.example.com")]
#[case::five_parts("1.2.3.4.5")]
#[case::no_octal("089.1")]
#[case::too_large("4294967296")]
#[case::empty("")]
#[case::a_part_is_empty("127..1")]
fn what_is_no_address_is_left_to_the_names(#[case] host: &str) {
    assert_eq!(literal(host), None);
}

#[rstest]
#[case::as_written("git.internal", 443, &["10.1.2.3"], true)]
#[case::case_and_dot("GIT.internal.", 443, &["10.1.2.3"], true)]
#[case::other_port("git.internal", 8443, &["10.1.2.3"], false)]
#[case::other_host("git2.internal", 443, &["10.1.2.3"], false)]
#[case::other_range("git.internal", 443, &["10.2.2.3"], false)]
#[case::one_of_two("git.internal", 443, &["10.1.2.3", "10.2.0.1"], false)]
#[case::beside_a_public_one("git.internal", 443, &["10.1.2.3", "8.8.8.8"], true)]
#[case::mapped("git.internal", 443, &["::ffff:10.1.2.3"], true)]
#[case::six_to_four("git.internal", 443, &["2002:a01:203::"], true)]
#[case::v6("git6.internal", 443, &["fd00:1::1"], true)]
#[case::v6_of_another_range("git6.internal", 443, &["fd01:1::1"], false)]
#[case::never_the_api_server("api.internal", 443, &["10.96.0.1"], false)]
#[case::not_in_other_clothes("api.internal", 443, &["::ffff:10.96.0.1"], false)]
#[tokio::test]
async fn an_exception_is_host_range_and_port_together(
    #[case] host: &str,
    #[case] port: u16,
    #[case] addresses: &[&str],
    #[case] open: bool,
) {
    let exceptions = [
        "git.internal=10.1.0.0/16:443",
        "git6.internal=fd00::/16:443",
        "api.internal=10.0.0.0/8:443",
    ];
    let resolved = guard(&exceptions, addresses).resolve(host, port).await;
    assert_eq!(resolved.is_ok(), open, "{resolved:?}");
}

#[tokio::test]
async fn t08_one_closed_address_among_open_ones_refuses_the_host() {
    let guard = guard(&[], &["8.8.8.8", "169.254.169.254"]);
    let error = guard.resolve("mixed.example.com", 443).await.unwrap_err();
    assert_eq!(error.reason(), Reason::AddressRefused);
    assert_eq!(
        error.to_string(),
        "`mixed.example.com` leads to 169.254.169.254, a link-local address, which is closed for port 443"
    );
}

#[rstest]
#[case("git.internal")]
#[case("git.internal=10.0.0.0/8")]
#[case("git.internal=10.0.0.0/33:443")]
#[case("git.internal=10.0.0.0/8:0")]
#[case("*=10.0.0.0/8:443")]
#[case("=10.0.0.0/8:443")]
#[case("git.internal=ten/8:443")]
fn an_exception_that_is_none_says_how_to_write_one(#[case] text: &str) {
    let error = text.parse::<AddressException>().unwrap_err();
    assert!(error.to_string().contains("git.internal=10.1.0.0/16:443"));
}

proptest! {
    #[test]
    fn any_host_is_judged_without_a_panic(host in ".{0,60}") {
        drop(guard(&["a=0.0.0.0/0:1"], &[]).check_literal(&host, 1));
    }

    #[test]
    fn an_address_is_judged_as_its_mapped_form(bits in any::<u32>()) {
        let v4 = Ipv4Addr::from_bits(bits);
        let guard = guard(&[], &[]);
        let plain = guard.check("h", IpAddr::V4(v4), 443).is_ok();
        let mapped = guard.check("h", IpAddr::V6(v4.to_ipv6_mapped()), 443).is_ok();
        prop_assert_eq!(plain, mapped);
    }
}
