//! Lines of files that are lists of fields, `CKPT=1 INTERVAL=4` or `GROUPS=node7 RACK=1`, and the
//! parameters that stand for them where files are not read again.

use std::collections::BTreeMap;

use super::{ConfigError, Layers, Origin, Rank, descriptors, groups};

/// One line, or one part of the parameter that stands for lines.
#[derive(Debug)]
pub(super) struct Listed {
    /// What follows the first word and its `=`.
    pub(super) text: String,
    pub(super) origin: Origin,
    pub(super) rank: Rank,
    /// It is the parameter's: it has no line that could be named.
    pub(super) by_parameter: bool,
}

impl Layers {
    /// The texts of one source by parameter, its lines as the parameter that stands for them.
    pub(super) fn of_rank(&self, rank: Rank) -> BTreeMap<&'static str, String> {
        let found =
            self.texts.iter().filter_map(|(name, layers)| Some((*name, layers.get(&rank)?.0.clone())));
        let mut found: BTreeMap<&'static str, String> = found.collect();
        for (first, parameter) in
            [(descriptors::CHECKPOINT, descriptors::PARAMETER), (groups::GROUPS, groups::PARAMETER)]
        {
            let lines = self.lines.get(&rank).into_iter().flatten();
            let lines = lines.filter(|(word, ..)| *word == first);
            let lines: Vec<String> = lines.map(|(word, rest, _)| format!("{word}={rest}")).collect();
            if !lines.is_empty() {
                found.entry(parameter).or_insert_with(|| lines.join(";"));
            }
        }
        found
    }

    /// What the strongest source says that has lines that begin with `word`, or has `parameter`,
    /// which separates them by `;`. In one source the parameter counts.
    pub(super) fn strongest(
        &self,
        word: &'static str,
        parameter: &'static str,
    ) -> Result<Vec<Listed>, ConfigError> {
        let text = self.read(parameter, |text, _| Ok(text.to_owned()))?;
        let set = self.texts.get(parameter).and_then(|layers| layers.first_key_value());
        let set = set.map(|(rank, (_, origin))| (*rank, origin.clone()));
        let with_lines = self.lines.iter().find(|(_, lines)| lines.iter().any(|(first, ..)| *first == word));
        let with_lines = with_lines.map(|(rank, lines)| (*rank, lines));
        if let (Some(text), Some((rank, origin))) = (text, set)
            && with_lines.is_none_or(|(lines, _)| rank <= lines)
        {
            let prefix = format!("{word}=");
            let parts = text.split(';').map(str::trim).filter(|part| !part.is_empty());
            let parts = parts.map(|part| part.strip_prefix(&prefix).unwrap_or(part).to_owned());
            let listed = |text| Listed { text, origin: origin.clone(), rank, by_parameter: true };
            return Ok(parts.map(listed).collect());
        }
        let Some((rank, lines)) = with_lines else { return Ok(Vec::new()) };
        let lines = lines.iter().filter(|(first, ..)| *first == word);
        let listed = |(_, text, origin): &(&str, String, Origin)| Listed {
            text: text.clone(),
            origin: origin.clone(),
            rank,
            by_parameter: false,
        };
        Ok(lines.map(listed).collect())
    }
}
