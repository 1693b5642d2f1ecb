//! Contract of the limit store: token buckets and quota windows.

use std::sync::Arc;
use std::time::Duration;

use rialto::store::ClusterStore;
use rialto::store::traits::{BucketRate, QuotaUse, SharedBucket};

/// A rate that gains nothing while a test runs.
fn burst(burst: u32) -> Option<BucketRate> {
    Some(BucketRate { interval: Duration::from_secs(3600), burst })
}

fn window(start: u64, limit: u64) -> Option<QuotaUse> {
    Some(QuotaUse { start, limit, ends_in: Duration::from_secs(60) })
}

pub async fn a_bucket_gives_its_burst_and_what_comes_back(store: Arc<dyn ClusterStore>) {
    let bucket = SharedBucket { rate: burst(10), window: None };
    let take = async |key: &'static str, wanted| store.take_tokens(key, bucket, wanted).await.unwrap();
    assert_eq!(take("a", 7).await.granted, 7);
    assert_eq!(take("a", 7).await.granted, 3, "what is left");
    let none = take("a", 1).await;
    assert_eq!(none.granted, 0);
    assert!(none.retry_after > Duration::from_secs(3500) && none.retry_after <= Duration::from_secs(3600), "{none:?}");
    assert_eq!(take("b", 1).await.granted, 1, "another bucket");
    store.return_tokens("a", bucket, 4).await.unwrap();
    assert_eq!(take("a", 9).await.granted, 4);
    // A bucket that gains a token each 20 ms.
    let quick = SharedBucket { rate: Some(BucketRate { interval: Duration::from_millis(20), burst: 2 }), window: None };
    assert_eq!(store.take_tokens("quick", quick, 9).await.unwrap().granted, 2);
    super::until("it has gained one", async || store.take_tokens("quick", quick, 1).await.unwrap().granted == 1).await;
}

pub async fn a_quota_is_counted_by_window(store: Arc<dyn ClusterStore>) {
    let bucket = |start| SharedBucket { rate: None, window: window(start, 5) };
    let take = async |start, wanted| store.take_tokens("a", bucket(start), wanted).await.unwrap();
    assert_eq!((take(60, 3).await.granted, take(60, 3).await.granted), (3, 2));
    let none = take(60, 1).await;
    assert_eq!((none.granted, none.retry_after), (0, Duration::from_secs(60)));
    assert_eq!(take(120, 9).await.granted, 5, "the next window");
    store.return_tokens("a", bucket(60), 2).await.unwrap();
    assert_eq!((take(60, 9).await.granted, take(120, 9).await.granted), (2, 0));
    // What is given back to a window that is over is lost.
    store.return_tokens("a", bucket(0), 2).await.unwrap();
    assert_eq!(take(0, 9).await.granted, 5);
}

pub async fn tokens_are_given_by_the_lesser_of_rate_and_quota(store: Arc<dyn ClusterStore>) {
    let bucket = SharedBucket { rate: burst(10), window: window(60, 4) };
    let granted =
        async |key: &'static str, bucket, wanted| store.take_tokens(key, bucket, wanted).await.unwrap().granted;
    assert_eq!(granted("a", bucket, 8).await, 4);
    assert_eq!(granted("a", bucket, 1).await, 0);
    // The quota had none, so the bucket gave none: six are left in it.
    assert_eq!(granted("a", SharedBucket { window: None, ..bucket }, 9).await, 6);
    let narrow = SharedBucket { rate: burst(2), window: window(60, 100) };
    assert_eq!((granted("b", narrow, 8).await, granted("b", narrow, 8).await), (2, 0));
    assert_eq!(granted("b", SharedBucket { rate: None, ..narrow }, 1000).await, 98);
}
