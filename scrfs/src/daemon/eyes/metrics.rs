//! Numbers for monitoring, in the text format that Prometheus and what is compatible with it reads.

use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::status::NodeStatus;

use super::super::node::Node;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Place {
    host: String,
    job: String,
    mode: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Dataset {
    id: u64,
    name: String,
    state: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Level {
    level: String,
}

impl Node {
    pub(super) fn metrics(&self) -> String {
        let mut registry = Registry::with_prefix("scrfs");
        add_node(&mut registry, &self.status());
        let (need, exit) = {
            let state = self.state.lock();
            (state.advised.need_checkpoint(), state.advised.should_exit())
        };
        gauge(&mut registry, "need_checkpoint", "The lead advises a checkpoint", need.into());
        gauge(&mut registry, "should_exit", "The lead advises to end", exit.into());
        if let Ok(room) = self.room_in(self.cache.stores.next()) {
            let bytes = |blocks: u64| whole(blocks.saturating_mul(room.f_frsize));
            gauge(&mut registry, "cache_size_bytes", "Bytes that the cache may take", bytes(room.f_blocks));
            gauge(&mut registry, "cache_free_bytes", "Room that programs have", bytes(room.f_bavail));
        }
        let events = Family::<Level, Gauge>::default();
        for (level, count) in self.events.counts() {
            events.get_or_create(&Level { level: level.to_owned() }).set(whole(count));
        }
        registry.register("events", "Events since the daemon's start", events);
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &registry);
        text
    }
}

fn add_node(registry: &mut Registry, status: &NodeStatus) {
    let place = Family::<Place, Gauge>::default();
    let at = Place { host: status.host.clone(), job: status.job.clone(), mode: status.mode.clone() };
    place.get_or_create(&at).set(1);
    registry.register("mount", "The mount that these numbers are of", place);
    gauge(registry, "coordinator_attached", "A coordinator is attached", status.coordinator.is_some().into());
    gauge(registry, "epoch", "Highest epoch seen", whole(status.epoch));
    gauge(registry, "requests_waiting", "Requests of programs that wait", status.waiting.into());
    let (bytes, files, safe) =
        (Family::<Dataset, Gauge>::default(), Family::<Dataset, Gauge>::default(), Family::default());
    for dataset in &status.datasets {
        let label = Dataset { id: dataset.id, name: dataset.name.clone(), state: dataset.state.clone() };
        bytes.get_or_create(&label).set(whole(dataset.bytes));
        files.get_or_create(&label).set(whole(dataset.files));
        let survives = !dataset.survives.is_empty() && dataset.survives.iter().all(|(_, kept)| *kept);
        Family::<Dataset, Gauge>::get_or_create(&safe, &label).set(survives.into());
    }
    registry.register("dataset_bytes", "Bytes of a dataset", bytes);
    registry.register("dataset_files", "Files of a dataset", files);
    registry.register("dataset_protected", "It survives the loss of any one node", safe);
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: i64) {
    let gauge = Gauge::<i64>::default();
    gauge.set(value);
    registry.register(name, help, gauge);
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
