//! Lists of host names as schedulers write them: `node[1-3,7],login`.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

/// Bytes of a list without ranges: half of what an argument may have, as launchers add to it.
const PLAIN_MAX: usize = 64 << 10;

/// More hosts than this are a mistake.
const HOSTS_MAX: usize = 100_000;

/// A host's name without its domain: schedulers' lists and hosts themselves may differ in that. An
/// address has none.
pub fn short(host: &str) -> &str {
    if host.parse::<IpAddr>().is_ok() { host } else { host.split('.').next().unwrap_or_default() }
}

/// A list of hosts, separated by commas; one that is too long for an argument or a variable of a
/// program (128 KiB) has ranges, as schedulers write them, and the order of the first of each.
pub fn list(hosts: &[String]) -> String {
    let plain = hosts.join(",");
    if plain.len() <= PLAIN_MAX { plain } else { folded(hosts) }
}

/// Hosts whose names differ in a number at their end.
struct Family<'a> {
    /// Before the number; of a name without one all of it.
    head: &'a str,
    /// With the dot before it, or empty.
    domain: &'a str,
    ranges: Vec<(&'a str, &'a str)>,
}

impl Family<'_> {
    fn written(&self) -> String {
        let Self { head, domain, ranges } = self;
        match ranges.as_slice() {
            [] => format!("{head}{domain}"),
            [(low, high)] if low == high => format!("{head}{low}{domain}"),
            ranges => {
                let range = |(low, high): &(&str, &str)| {
                    if low == high { (*low).to_owned() } else { format!("{low}-{high}") }
                };
                format!("{head}[{}]{domain}", ranges.iter().map(range).collect::<Vec<_>>().join(","))
            }
        }
    }
}

fn folded(hosts: &[String]) -> String {
    let mut families: Vec<Family<'_>> = Vec::new();
    let mut places: HashMap<(&str, &str), usize> = HashMap::new();
    for host in hosts {
        let (name, domain) = host.split_at(short(host).len());
        let (head, number) = name.split_at(name.trim_end_matches(|c: char| c.is_ascii_digit()).len());
        if numbers(number, number).is_none() {
            families.push(Family { head: name, domain, ranges: Vec::new() });
            continue;
        }
        let at = *places.entry((head, domain)).or_insert_with(|| {
            families.push(Family { head, domain, ranges: Vec::new() });
            families.len() - 1
        });
        let ranges = &mut families[at].ranges;
        match ranges.last_mut() {
            Some((_, last)) if follows(last, number) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    families.iter().map(Family::written).collect::<Vec<_>>().join(",")
}

/// The next number, of as many digits.
fn follows(last: &str, number: &str) -> bool {
    let value = |text: &str| text.parse::<u32>().ok();
    last.len() == number.len() && value(last).and_then(|last| last.checked_add(1)) == value(number)
}

/// Two names in a list that are one host's.
pub fn twice(hosts: &[String]) -> Option<(&str, &str)> {
    let mut seen: HashMap<&str, &str> = HashMap::new();
    hosts.iter().find_map(|host| Some((seen.insert(short(host), host)?, host.as_str())))
}

/// The hosts of a list, in its order, each once. Separators are commas and blanks outside brackets.
pub fn expand(list: &str) -> Result<Vec<String>, String> {
    let mut hosts: Vec<String> = Vec::new();
    let mut seen = HashSet::new();
    let mut named = 0;
    for item in split_outside_brackets(list)? {
        for host in expand_item(item)? {
            named += 1;
            if named > HOSTS_MAX {
                return Err(format!("more than {HOSTS_MAX} hosts"));
            }
            if seen.insert(host.clone()) {
                hosts.push(host);
            }
        }
    }
    Ok(hosts)
}

fn split_outside_brackets(list: &str) -> Result<Vec<&str>, String> {
    let (mut items, mut begin, mut inside) = (Vec::new(), 0, false);
    for (at, c) in list.char_indices() {
        match c {
            '[' if !inside => inside = true,
            ']' if inside => inside = false,
            '[' | ']' => return Err(format!("unbalanced bracket in host list {list:?}")),
            ',' | ' ' | '\t' | '\n' if !inside => {
                items.push(&list[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(format!("unbalanced bracket in host list {list:?}"));
    }
    items.push(&list[begin..]);
    items.retain(|item| !item.is_empty());
    Ok(items)
}

fn expand_item(item: &str) -> Result<Vec<String>, String> {
    let Some((head, rest)) = item.split_once('[') else {
        return if is_name(item) {
            Ok(vec![item.to_owned()])
        } else {
            Err(format!("{item:?} is no host name"))
        };
    };
    let Some((ranges, tail)) = rest.split_once(']') else {
        return Err(format!("unbalanced bracket in {item:?}"));
    };
    let mut hosts = Vec::new();
    for range in ranges.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        for n in numbers(low, high).ok_or_else(|| format!("{range:?} in {item:?} is no range of numbers"))? {
            for end in expand_item_or_empty(tail)? {
                let host = format!("{head}{n:0width$}{end}", width = low.len());
                if !is_name(&host) {
                    return Err(format!("{host:?} is no host name"));
                }
                if hosts.len() >= HOSTS_MAX {
                    return Err(format!("more than {HOSTS_MAX} hosts"));
                }
                hosts.push(host);
            }
        }
    }
    Ok(hosts)
}

fn expand_item_or_empty(tail: &str) -> Result<Vec<String>, String> {
    if tail.contains('[') {
        Err("one pair of brackets in a host name at most".to_owned())
    } else {
        Ok(vec![tail.to_owned()])
    }
}

fn numbers(low: &str, high: &str) -> Option<std::ops::RangeInclusive<u32>> {
    let number = |text: &str| {
        let fits = (1..=9).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        fits.then(|| text.parse::<u32>().ok()).flatten()
    };
    let (low, high) = (number(low)?, number(high)?);
    (low <= high && (high - low) as usize <= HOSTS_MAX).then_some(low..=high)
}

/// Names go on command lines of launchers, where commas and colons have a meaning and a dash begins
/// an option.
fn is_name(text: &str) -> bool {
    let ok = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    !text.is_empty() && text.len() <= 253 && !text.starts_with('-') && text.bytes().all(ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_as_schedulers_write_them() {
        assert_eq!(expand("a,b c").unwrap(), ["a", "b", "c"]);
        assert_eq!(expand("n[08-11,3]x, n09x").unwrap(), ["n08x", "n09x", "n10x", "n11x", "n3x"]);
        assert_eq!(expand(" ").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn an_address_is_whole_and_a_host_is_in_a_list_once() {
        for (host, name) in [("n1.site", "n1"), ("n1", "n1"), ("10.0.0.2", "10.0.0.2"), ("10.0", "10")] {
            assert_eq!(short(host), name);
        }
        let list = |text: &str| expand(text).unwrap();
        assert_eq!(twice(&list("n0,n1.site,n2,n1.other")), Some(("n1.site", "n1.other")));
        assert_eq!(twice(&list("10.0.0.1,10.0.0.2,n1,n10,n1")), None);
    }

    #[test]
    fn a_list_of_ten_thousand_hosts_fits_an_argument() {
        for text in
            ["n[08-11,3],fat,n[4-5],x-1,x-7,n[12-14].site,n9.other,10.0.0.1,10.0.0.2", "a[1-9],a[10-11],a01"]
        {
            let hosts = expand(text).unwrap();
            let mut back = expand(&folded(&hosts)).unwrap();
            back.sort();
            let mut sorted = hosts.clone();
            sorted.sort();
            assert_eq!(back, sorted, "{}", folded(&hosts));
            assert_eq!(list(&hosts), hosts.join(","));
        }
        let many = expand("node[00000-09999]").unwrap();
        assert_eq!(list(&many), "node[00000-09999]");
        let of_site: Vec<_> = many.iter().map(|host| format!("{host}.site.example")).collect();
        assert_eq!(list(&of_site), "node[00000-09999].site.example");
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in
            ["a[", "a]", "a[1-]", "a[3-1]", "a[0-999999999]", "-oops", "a;b", "a[1][2]", "a[[1]]", "h\u{e4}"]
        {
            assert!(expand(bad).is_err(), "{bad}");
        }
    }
}
