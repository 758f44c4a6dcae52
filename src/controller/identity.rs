//! Who is at the other end: a pod's token, reviewed by the API server, leads to the pod, and the pod to its run.
//!
//! What a token says of itself only decides whether it is worth a review, so that nobody floods the API server with made
//! up ones. A review counts for [`CACHED`]; a token that outlives its pod leads to no run, whatever its review said.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::api::{Api, PostParams};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::api::sha256_hex;
use crate::gateway::{Identified, Identity, Live};
use crate::manifest::AUDIENCE;

/// How long a review counts: each lookup of an agent would be one otherwise.
const CACHED: Duration = Duration::from_secs(10);
/// Reviews at once; more wait.
const REVIEWS: usize = 16;
/// Longer ones are nobody's: a service account's token is about 1 KiB.
const TOKEN_BYTES: usize = 16 * 1024;
/// Where a token says which pod it is bound to, in its reviewed user.
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// The runs that live, by the uid of the pod of their present attempt. Cheap to clone; all clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Lives(Arc<Table>);

#[derive(Debug, Default)]
struct Table {
    runs: RwLock<HashMap<String, Arc<Live>>>,
    /// Every pod has been seen: one that is not here is nobody's.
    whole: AtomicBool,
}

impl Lives {
    /// From now on this pod speaks for this run.
    pub fn insert(&self, pod_uid: &str, live: Arc<Live>) {
        let mut lives = self.0.runs.write().unwrap_or_else(PoisonError::into_inner);
        lives.insert(pod_uid.to_owned(), live);
    }

    /// This pod speaks for nobody any more.
    pub fn remove(&self, pod_uid: &str) {
        let mut lives = self.0.runs.write().unwrap_or_else(PoisonError::into_inner);
        lives.remove(pod_uid);
    }

    /// From now on a pod that is not known is nobody's. Until then its run may just not have been read yet.
    pub fn are_whole(&self) {
        self.0.whole.store(true, Ordering::Release);
    }

    /// The run that a pod speaks for.
    #[must_use]
    pub fn of(&self, pod_uid: &str) -> Option<Arc<Live>> {
        let lives = self.0.runs.read().unwrap_or_else(PoisonError::into_inner);
        lives.get(pod_uid).cloned()
    }
}

/// Identity by `TokenReview`.
#[derive(Debug)]
pub struct Reviews {
    api: Api<TokenReview>,
    lives: Lives,
    timeout: Duration,
    turns: Semaphore,
    /// The pod of each token that was found good, by the token's hash.
    known: Mutex<HashMap<String, (String, Instant)>>,
}

impl Reviews {
    /// Asks this API server, `timeout` at most, about the pods of these runs.
    #[must_use]
    pub fn new(api: Api<TokenReview>, lives: Lives, timeout: Duration) -> Self {
        Self {
            api,
            lives,
            timeout,
            turns: Semaphore::new(REVIEWS),
            known: Mutex::default(),
        }
    }

    async fn identified(&self, token: &str) -> Identified {
        if token.len() > TOKEN_BYTES {
            return Identified::Nobody;
        }
        let hash = sha256_hex(token.as_bytes());
        if let Some(uid) = self.cached(&hash) {
            return self.of(&uid);
        }
        let Some(said) = claimed_pod(token) else {
            return Identified::Nobody;
        };
        let live = match self.of(&said) {
            Identified::Run(live) => live,
            other @ (Identified::Nobody | Identified::NotNow) => return other,
        };
        let Some(reviewed) = self.review(token).await else {
            return Identified::NotNow;
        };
        if pod_of(&reviewed, live.key().namespace.as_str()).as_ref() != Some(&said) {
            return Identified::Nobody;
        }
        self.remember(hash, said);
        Identified::Run(live)
    }

    fn of(&self, pod_uid: &str) -> Identified {
        match self.lives.of(pod_uid) {
            Some(live) => Identified::Run(live),
            None if self.lives.0.whole.load(Ordering::Acquire) => Identified::Nobody,
            None => Identified::NotNow,
        }
    }

    fn cached(&self, hash: &str) -> Option<String> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (uid, at) = known.get(hash)?;
        (at.elapsed() < CACHED).then(|| uid.clone())
    }

    fn remember(&self, hash: String, uid: String) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, (_, at)| at.elapsed() < CACHED);
        known.insert(hash, (uid, Instant::now()));
    }

    async fn review(&self, token: &str) -> Option<TokenReviewStatus> {
        let _turn = self.turns.acquire().await.ok()?;
        let review = TokenReview {
            spec: TokenReviewSpec {
                audiences: Some(vec![AUDIENCE.to_owned()]),
                token: Some(token.to_owned()),
            },
            ..TokenReview::default()
        };
        let params = PostParams::default();
        let asked = self.api.create(&params, &review);
        match tokio::time::timeout(self.timeout, asked).await {
            Ok(Ok(review)) => review.status,
            // The error may hold the request, and with it the token: it is not shown.
            Ok(Err(_)) => {
                tracing::warn!(
                    "a pod's token could not be reviewed: the API server refused or was away"
                );
                None
            }
            Err(_) => {
                tracing::warn!("a pod's token could not be reviewed in time");
                None
            }
        }
    }
}

impl Identity for Reviews {
    fn identify<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Identified> {
        self.identified(token).boxed()
    }
}

/// The pod that a token says it is bound to. Not proved in any way.
fn claimed_pod(token: &str) -> Option<String> {
    let payload = token.split('.').nth(1)?;
    let payload = URL_SAFE_NO_PAD.decode(payload).ok()?;
    let claims: serde_json::Value = serde_json::from_slice(&payload).ok()?;
    let uid = claims.pointer("/kubernetes.io/pod/uid")?.as_str()?;
    Some(uid.to_owned())
}

/// The pod that a reviewed token is bound to, if it was made for us and in this namespace.
fn pod_of(status: &TokenReviewStatus, namespace: &str) -> Option<String> {
    let ours = |audience: &String| audience == AUDIENCE;
    let for_us = status.audiences.iter().flatten().any(ours);
    if status.authenticated != Some(true) || !for_us {
        return None;
    }
    let user = status.user.as_ref()?;
    let account = user.username.as_deref()?;
    let rest = account.strip_prefix("system:serviceaccount:")?;
    let (of, _name) = rest.split_once(':')?;
    if of != namespace {
        return None;
    }
    user.extra.as_ref()?.get(POD_UID)?.first().cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::authentication::v1::UserInfo;
    use rstest::rstest;

    fn token(claims: &serde_json::Value) -> String {
        format!("e30.{}.x", URL_SAFE_NO_PAD.encode(claims.to_string()))
    }

    #[test]
    fn a_token_names_the_pod_that_it_is_bound_to() {
        let claims = serde_json::json!({"kubernetes.io": {"pod": {"name": "p", "uid": "u-1"}}});
        assert_eq!(claimed_pod(&token(&claims)).as_deref(), Some("u-1"));
        assert_eq!(claimed_pod(&token(&serde_json::json!({}))), None);
        assert_eq!(claimed_pod("no.token"), None);
        assert_eq!(claimed_pod(""), None);
    }

    #[rstest]
    #[case::good(true, AUDIENCE, "system:serviceaccount:team-a:default", Some("u-1"))]
    #[case::not_authenticated(false, AUDIENCE, "system:serviceaccount:team-a:default", None)]
    #[case::made_for_the_api_server(
        true,
        "https://kubernetes",
        "system:serviceaccount:team-a:default",
        None
    )]
    #[case::of_another_namespace(true, AUDIENCE, "system:serviceaccount:team-b:default", None)]
    #[case::a_person(true, AUDIENCE, "jane", None)]
    fn only_a_token_of_the_runs_own_namespace_counts(
        #[case] authenticated: bool,
        #[case] audience: &str,
        #[case] username: &str,
        #[case] pod: Option<&str>,
    ) {
        let extra = [(POD_UID.to_owned(), vec!["u-1".to_owned()])].into();
        let status = TokenReviewStatus {
            authenticated: Some(authenticated),
            audiences: Some(vec![audience.to_owned()]),
            user: Some(UserInfo {
                username: Some(username.to_owned()),
                extra: Some(extra),
                ..UserInfo::default()
            }),
            error: None,
        };
        assert_eq!(pod_of(&status, "team-a").as_deref(), pod);
    }
}
