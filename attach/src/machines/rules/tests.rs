//! Rules as a configuration may have them, and VMMs of anybody.

use proptest::prelude::*;

use super::*;
use crate::machines::name::MAX_NAME;

fn rule(command_line: &str, cgroup: &str, name: &str, labels: &[(&str, &str)]) -> RuleText {
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let labels = labels.iter();
    RuleText {
        command_line: given(command_line),
        cgroup: given(cgroup),
        name: given(name),
        labels: labels
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
    }
}

/// The name and the labels that `rules` give a VMM.
fn found(rules: &[RuleText], command_line: &str, group: &str) -> Option<String> {
    let Named { name, labels } = NameRules::new(rules).unwrap().find(command_line, group)?;
    let labels = labels.iter().map(|(key, value)| format!("{key}={value}"));
    let words: Vec<String> = [name.unwrap_or_default()]
        .into_iter()
        .chain(labels)
        .collect();
    Some(words.join(" "))
}

#[test]
fn the_first_rule_that_matches_names_the_guest() {
    let rules = [
        rule(
            r"-name guest=(?<vm>[^,]+)",
            r"^/tenants/(?<tenant>\w+)/",
            "${tenant}/${vm}",
            &[("tenant", "${tenant}"), ("price", "$$5")],
        ),
        rule("--id ([a-z]+)-([0-9]+)", "", "${1}.${2}", &[]),
        rule("", "/build/", "", &[("use", "build")]),
        rule("^qemu", "", "all of ${0}", &[]),
    ];
    for (line, group, expected) in [
        (
            "qemu -name guest=db1,debug-threads=on",
            "/tenants/a/vm",
            Some("a/db1 price=$5 tenant=a"),
        ),
        ("firecracker --id vm-17", "/", Some("vm.17")),
        (
            "firecracker --id vm-17 -name guest=x",
            "/tenants/",
            Some("vm.17"),
        ),
        ("crosvm", "/build/7", Some(" use=build")),
        (
            "qemu -name guest=db1",
            "/machine.slice",
            Some("all of qemu"),
        ),
        ("crosvm", "/", None),
        ("", "", None),
    ] {
        let found = found(&rules, line, group);
        assert_eq!(found.as_deref(), expected, "{line} {group}");
    }
    assert_eq!(found(&[], "qemu", "/"), None);
}

/// A group without a match is an empty text, and an empty name isn't used.
#[test]
fn a_guest_keeps_its_name_if_a_rule_has_none_for_it() {
    let rules = [rule(
        "x(?<a>y)?",
        "",
        "${a}",
        &[("a", "${a}"), ("b", "b${a}")],
    )];
    assert_eq!(found(&rules, "x", ""), Some(" b=b".to_owned()));
    assert_eq!(found(&rules, "xy", ""), Some("y a=y b=by".to_owned()));
}

#[test]
fn command_lines_are_compared_as_ps_shows_them() {
    assert_eq!(shown(b"qemu\0-name\0a b\xff\0"), "qemu -name a b\u{fffd}");
    assert_eq!(shown(b""), "");
    assert!(shown(&vec![b'x'; 1 << 20]).len() <= MAX_COMPARED);
}

#[test]
fn a_process_is_named_only_while_it_is_the_same() {
    let pid = i32::try_from(std::process::id()).unwrap();
    let start_time = processes::start_time(pid).unwrap();
    let machine = |start_time| Machine {
        pid,
        start_time,
        user: 0,
        program: String::new(),
        name: None,
        manager: None,
        labels: BTreeMap::new(),
        descriptor: 0,
        vcpus: Vec::new(),
        memory_bytes: None,
        obstacle: None,
    };
    let rules = NameRules::new(&[rule("kvmprof", "", "this test", &[("a", "b")])]).unwrap();
    let named = rules.of(&machine(start_time)).unwrap();
    assert_eq!(named.name.as_deref(), Some("this test"));
    assert_eq!(named.labels, [("a".to_owned(), "b".to_owned())].into());
    assert_eq!(rules.of(&machine(start_time + 1)), None);
    assert_eq!(NameRules::default().of(&machine(start_time)), None);
}

#[test]
fn wrong_rules_are_refused_with_what_to_do() {
    let good = rule("x", "", "y", &[]);
    let long = "x".repeat(1001);
    for (wrong, words) in [
        (
            rule("", "", "y", &[]),
            "rule 2 has neither command_line nor cgroup: give one",
        ),
        (
            rule("x", "", "", &[]),
            "rule 2 has neither name nor labels: give one",
        ),
        (
            rule("operator(", "", "y", &[]),
            "rule 2: command_line is no regular expression",
        ),
        (
            rule("x", "a{1000}{1000}", "y", &[]),
            "rule 2: cgroup is no regular expression",
        ),
        (
            rule(&long, "", "y", &[]),
            "command_line has 1001 bytes: it has to have 1 to 1000",
        ),
        (rule("x", "", &long[..300], &[]), "name has 300 bytes"),
        (rule("x", "", "y", &[("a", "")]), "labels.a has 0 bytes"),
        (rule("x", "", "${a}", &[]), "write (?<a>...) around"),
        (
            rule("(x)", "", "${2}", &[]),
            "name has ${2}, and no expression",
        ),
        (
            rule("(x)", "(y)", "${1}", &[]),
            "two expressions: give the group a name",
        ),
        (
            rule("(?<a>x)", "(?<a>y)", "${a}", &[]),
            "have a group a each: rename one",
        ),
        (rule("x", "", "5 $", &[]), "write $$ for a dollar sign"),
        (
            rule("x", "", "${a", &[]),
            "name has a $ that isn't the start of ${GROUP}",
        ),
        (
            rule("x", "", "y", &[("A", "b")]),
            "labels: A: a label's name has letters",
        ),
    ] {
        let refused = NameRules::new(&[good.clone(), wrong])
            .unwrap_err()
            .to_string();
        assert!(refused.contains(words), "{words}: {refused}");
    }
}

#[test]
fn rules_and_labels_are_bounded() {
    let good = rule("x", "", "y", &[]);
    let refused = NameRules::new(&vec![good; 33]).unwrap_err();
    assert_eq!(refused, RuleError::TooMany(33));
    let keys: Vec<String> = (0..9).map(|number| format!("k{number}")).collect();
    let labels: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "v")).collect();
    let refused = NameRules::new(&[rule("x", "", "", &labels)]).unwrap_err();
    assert_eq!(refused, RuleError::TooManyLabels { rule: 1, count: 9 });
}

proptest! {
    #[test]
    fn any_rule_and_any_command_line_give_bounded_names(
        expression in ".{0,40}",
        name in "(\\$\\{[ab0-2]\\}|\\$|x|é){0,30}",
        line in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        let both = rule("(?<a>.*)", &expression, &name, &[("b", &name)]);
        let one = rule(&expression, "", &name, &[]);
        for text in [both, one] {
            if let Ok(rules) = NameRules::new(&[text]) {
                let line = shown(&line);
                let named = rules.find(&line, &line).unwrap_or_default();
                let texts = named.name.iter().chain(named.labels.values());
                prop_assert!(texts.into_iter().all(|text| text.len() <= 3 * MAX_NAME));
            }
        }
    }
}
