//! Integration tests: the gateway seen from outside, over real sockets on ephemeral ports.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "a test that cannot go on should panic")]
#![allow(unreachable_pub, reason = "a test has no outside users")]

mod access;
mod audit;
mod authorization;
mod authorization_server;
mod bridge;
mod browser;
mod checklist;
mod children;
mod cli;
mod cluster;
mod config;
mod conformance;
mod conformance_server;
mod console;
mod console_page;
#[allow(dead_code, reason = "the differential test uses all of it")]
#[path = "../http1_differential/corpus.rs"]
mod corpus;
mod coverage;
mod crowds;
mod elements;
mod failures;
mod gateway;
mod groups;
mod harness;
mod http1;
mod http_chain;
mod http_modes;
mod issuers;
mod limits;
mod listening;
mod metric_exports;
mod nginx;
mod outbound;
mod peers;
mod per_request;
mod pieces;
mod ports;
mod process;
mod quotas;
mod rate_limits;
mod recording;
mod redis;
mod rest;
mod rest_documents;
mod rmcp_client;
mod rules;
mod scripted_server;
mod servers;
mod sse;
mod stdio;
mod stop;
mod store;
mod streamable;
mod streams;
mod tls;
mod traces;
