//! The three watches: runs, their pods, and network policies. Each has its own backoff, so one that is forbidden or breaks
//! slows nobody else; each ends up in the [`Store`](super::store::Store), and wakes the runs that it is about.
//!
//! Objects are read untyped first: a run that does not decode is a run that failed, and never the end of a watch.

use std::collections::HashSet;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Pod as PodObject;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, ApiResource, DynamicObject, ObjectMeta, ResourceExt as _};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Config, watcher};
use tokio_util::sync::CancellationToken;

use super::desk::Desk;
use super::objects;
use super::store::Body;
use crate::api::{Namespace, RunUid, SandboxRun};
use crate::manifest::{self, UID_LABEL};

/// The objects of one page of a list: some megabytes at most.
const PAGE: u32 = 100;

/// One namespace, or all.
type Scope = Option<Namespace>;

/// So long the first lists are waited for: a namespace that is gone, or whose rights were taken away, never has one.
const FIRST_LISTS: Duration = Duration::from_secs(30);

/// Watches everything in every scope until `stop`. Comes back when each first list is whole, or will not be soon.
pub(super) async fn begin(desk: &Desk, stop: &CancellationToken) {
    let scopes: Vec<Scope> = if desk.namespaces.is_empty() {
        vec![None]
    } else {
        desk.namespaces.iter().cloned().map(Some).collect()
    };
    let mut first_lists = Vec::new();
    for scope in scopes {
        let (told, first) = tokio::sync::oneshot::channel();
        let (of, about) = (desk.clone(), scope.clone());
        spawn(desk, stop, async move { runs(&of, about, told).await });
        first_lists.push(first);
        let (told, first) = tokio::sync::oneshot::channel();
        let (of, about) = (desk.clone(), scope.clone());
        spawn(desk, stop, async move { pods(&of, about, told).await });
        first_lists.push(first);
        let (told, first) = tokio::sync::oneshot::channel();
        let of = desk.clone();
        spawn(desk, stop, async move { policies(&of, scope, told).await });
        first_lists.push(first);
    }
    // A watch that ends before it has listed was stopped, and so is whoever waits here.
    let whole = tokio::time::timeout(FIRST_LISTS, futures::future::join_all(first_lists));
    if let Some(Err(_)) = stop.run_until_cancelled(whole).await {
        let missing: Vec<String> = scopes_missing(desk).collect();
        tracing::error!(
            namespaces = missing.join(", "),
            "some namespaces cannot be listed: their runs are not looked after, all others are"
        );
    }
}

/// Watched namespaces whose runs have never been listed.
fn scopes_missing(desk: &Desk) -> impl Iterator<Item = String> + '_ {
    let missing = |namespace: &&Namespace| !desk.store.has_listed(namespace);
    desk.namespaces
        .iter()
        .filter(missing)
        .map(Namespace::to_string)
}

type Told = tokio::sync::oneshot::Sender<()>;

/// Says that the first list is whole; false: it was said before.
fn say(told: &mut Option<Told>) -> bool {
    match told.take() {
        // Whoever waited may have been stopped.
        Some(told) => matches!(told.send(()), Ok(()) | Err(())),
        None => false,
    }
}

fn spawn(desk: &Desk, stop: &CancellationToken, watch: impl Future<Output = ()> + Send + 'static) {
    let tracker = &desk.gateway.tracker;
    tracker.spawn(stop.clone().run_until_cancelled_owned(watch));
}

fn config() -> Config {
    Config::default().page_size(PAGE)
}

async fn runs(desk: &Desk, scope: Scope, told: Told) {
    let resource = ApiResource::erase::<SandboxRun>(&());
    let api: Api<DynamicObject> = match &scope {
        Some(scope) => Api::namespaced_with(desk.client.clone(), scope.as_str(), &resource),
        None => Api::all_with(desk.client.clone(), &resource),
    };
    let mut told = Some(told);
    let mut listed: HashSet<RunUid> = HashSet::new();
    let mut events = quiet(desk, "SandboxRun", watcher(api, config()));
    while let Some(event) = events.next().await {
        match event {
            watcher::Event::Init => listed.clear(),
            watcher::Event::InitApply(object) => {
                if let Some(uid) = take_run(desk, object) {
                    listed.insert(uid);
                }
            }
            watcher::Event::InitDone => {
                for gone in desk.store.keep_runs(scope.as_ref(), &listed) {
                    desk.queue.wake(&gone);
                }
                listed = HashSet::new();
                if !say(&mut told) {
                    desk.sweep.notify_one(); // K09: what a watch lost shows in the list
                }
            }
            watcher::Event::Apply(object) => {
                take_run(desk, object);
            }
            watcher::Event::Delete(object) => {
                if let Some(uid) = objects::uid(&object.metadata) {
                    desk.store.drop_run(&uid);
                    desk.queue.wake(&uid);
                }
            }
        }
    }
}

/// Takes a run as it was seen. `None`: it is nothing that an API server makes.
fn take_run(desk: &Desk, object: DynamicObject) -> Option<RunUid> {
    let uid = objects::uid(&object.metadata)?;
    let known = desk.store.run(&uid);
    let run = objects::run(object, known.as_deref())?;
    // A finished run without a pod needs nobody, unless it goes by itself.
    let needs = !matches!(run.body, Body::Finished(_))
        || known.is_some()
        || run.wishes.delete_after_finished
        || !desk.store.pods(&uid).is_empty();
    desk.store.put_run(run);
    if needs {
        desk.queue.wake(&uid);
    }
    Some(uid)
}

async fn pods(desk: &Desk, scope: Scope, told: Told) {
    let api: Api<PodObject> = match &scope {
        Some(scope) => Api::namespaced(desk.client.clone(), scope.as_str()),
        None => Api::all(desk.client.clone()),
    };
    let mut told = Some(told);
    let mut listed: HashSet<String> = HashSet::new();
    let mut events = quiet(desk, "Pod", watcher(api, config().labels(UID_LABEL)));
    while let Some(event) = events.next().await {
        match event {
            watcher::Event::Init => listed.clear(),
            watcher::Event::InitApply(pod) => {
                listed.extend(pod.uid());
                take_pod(desk, &pod);
            }
            watcher::Event::InitDone => {
                let scope = scope.as_ref().map(Namespace::as_str);
                for run in desk.store.keep_pods(scope, &listed) {
                    desk.queue.wake(&run);
                }
                listed = HashSet::new();
                say(&mut told);
            }
            watcher::Event::Apply(pod) => take_pod(desk, &pod),
            watcher::Event::Delete(pod) => {
                if let Some((run, attempt)) = objects::run_of(&pod) {
                    let uid = pod.uid().unwrap_or_default();
                    desk.store.drop_pod(&run, attempt, &uid);
                    desk.lives.remove(&uid);
                    desk.queue.wake(&run);
                }
            }
        }
    }
}

fn take_pod(desk: &Desk, pod: &PodObject) {
    if let Some((run, attempt)) = objects::run_of(pod)
        && let Some(seen) = objects::pod(pod)
        && desk.store.put_pod(&run, attempt, seen)
    {
        desk.queue.wake(&run);
    }
}

async fn policies(desk: &Desk, scope: Scope, told: Told) {
    let api: Api<NetworkPolicy> = match &scope {
        Some(scope) => Api::namespaced(desk.client.clone(), scope.as_str()),
        None => Api::all(desk.client.clone()),
    };
    let mut told = Some(told);
    let mut listed: HashSet<(String, String)> = HashSet::new();
    let mut events = quiet(desk, "NetworkPolicy", watcher(api, config()));
    while let Some(event) = events.next().await {
        match event {
            watcher::Event::Init => listed.clear(),
            watcher::Event::InitApply(policy) => {
                let namespace = policy.namespace().unwrap_or_default();
                listed.insert((namespace, policy.name_any()));
                take_policy(desk, &policy);
            }
            watcher::Event::InitDone => {
                let scope = scope.as_ref().map(Namespace::as_str);
                for namespace in desk.store.keep_policies(scope, &listed) {
                    wake_all(desk, &namespace);
                }
                listed = HashSet::new();
                say(&mut told);
            }
            watcher::Event::Apply(policy) => take_policy(desk, &policy),
            watcher::Event::Delete(policy) => {
                let namespace = policy.namespace().unwrap_or_default();
                if desk.store.drop_policy(&namespace, &policy.name_any()) {
                    wake_all(desk, &namespace);
                }
            }
        }
    }
}

fn take_policy(desk: &Desk, policy: &NetworkPolicy) {
    let namespace = policy.namespace().unwrap_or_default();
    let name = policy.name_any();
    let news = if name == manifest::POLICY_NAME {
        let as_made = desk.is_as_made(policy);
        let version = policy.resource_version();
        desk.store
            .put_policy(&namespace, version.as_deref(), as_made)
    } else {
        let kept = NetworkPolicy {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                ..ObjectMeta::default()
            },
            spec: policy.spec.clone(),
        };
        desk.store.put_other(&namespace, &name, kept)
    };
    if news {
        wake_all(desk, &namespace);
    }
}

fn wake_all(desk: &Desk, namespace: &str) {
    for run in desk.store.live_in(namespace) {
        desk.queue.wake(&run);
    }
}

/// A watch that is begun again, later each time, when it breaks; which is said and counted, and nothing else.
fn quiet<K: Send + 'static>(
    desk: &Desk,
    kind: &'static str,
    watch: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
) -> futures::stream::BoxStream<'static, watcher::Event<K>> {
    let metrics = desk.metrics.clone();
    watch
        .default_backoff()
        .filter_map(move |event| {
            let event = event
                .inspect_err(|error| {
                    tracing::warn!(kind, %error, "a watch broke and is begun again");
                    metrics.watch_error(kind);
                })
                .ok();
            std::future::ready(event)
        })
        .boxed()
}
