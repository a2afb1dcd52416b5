//! `[metrics]`: where a member answers those who watch over it.

use squall_transports::bootstrap::Address;

use super::error::ConfigError;
use super::keys;
use super::table::ConfigValue;

/// Where a member answers those who watch over it, over HTTP: `/metrics` for Prometheus ([`crate::metrics::METRICS`]), `/healthz` and
/// `/readyz` for whatever restarts processes and sends traffic to them, `/trace` for what the member has noticed lately
/// ([`crate::FlightRecord`]).
///
/// It answers anyone who can reach the address, without the secret, and shows numbers and the names of subgroups: use a loopback
/// address or a private network. Connections are few, short and bounded, and answered by threads of their own from what the polling
/// thread publishes a hundred times a second at most: no request delays a message.
///
/// ```
/// use squall::config::{MetricsConfig, SubgroupConfig};
/// use squall::{Config, Group};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let name = format!("doc-metrics-{}", std::process::id());
/// let mut config = Config::local(&name, 1).subgroup("log", SubgroupConfig::default());
/// config.metrics = Some(MetricsConfig { listen: "127.0.0.1:0".parse()? }); // any port that is free
/// let group = Group::join(config)?;
/// println!("curl http://{}/metrics", group.metrics_address().expect("it is configured"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsConfig {
    /// The address, `host:port`; port 0 is any port that is free ([`crate::Group::metrics_address`]).
    pub listen: Address,
}

impl MetricsConfig {
    /// Returns what is wrong with it.
    pub(super) fn fault(&self) -> Option<String> {
        self.listen.is_unix().then(|| format!("[metrics] `listen = \"{}\"`: {TCP}", self.listen))
    }
}

/// Reads the table, if there is one. Without `listen`, no one is answered.
pub(super) fn read(value: Option<&ConfigValue<'_>>) -> Result<Option<MetricsConfig>, ConfigError> {
    let Some(value) = value else { return Ok(None) };
    let table = value.table()?;
    let Some(listen) = table.values(&keys::METRICS)?.get("listen") else { return Ok(None) };
    let address: Address = listen.parse()?;
    if address.is_unix() {
        return Err(listen.unexpected(TCP));
    }
    Ok(Some(MetricsConfig { listen: address }))
}

const TCP: &str = "write `host:port`, since metrics are read over HTTP";

#[cfg(test)]
mod tests {
    use crate::Config;

    fn metrics(line: &str) -> Result<Option<String>, String> {
        let text = format!(
            "cluster = \"kitchen\"\nsecret = \"at least sixteen bytes\"\nlisten = \"unix:@a\"\nmembers = 1\n\
             [metrics]\n{line}\n[subgroups.log]\n"
        );
        let config = Config::parse(&text).map_err(|error| error.to_string())?;
        Ok(config.metrics.map(|metrics| metrics.listen.to_string()))
    }

    #[test]
    fn metrics_have_an_address_of_their_own() {
        assert_eq!(metrics("listen = \"127.0.0.1:9464\""), Ok(Some("127.0.0.1:9464".into())));
        assert_eq!(metrics(""), Ok(None));
        let error = metrics("listen = \"unix:@metrics\"").unwrap_err();
        assert_eq!(
            error,
            "line 6: `listen = \"unix:@metrics\"`: write `host:port`, since metrics are read over HTTP"
        );
        let error = metrics("port = 9464").unwrap_err();
        assert_eq!(error, "line 6: unknown key `port` in [metrics]; known keys are listen");
    }

    /// Those who watch a member are no reason for others to refuse it.
    #[test]
    fn members_need_not_agree_on_metrics() {
        let config = Config::local("metrics", 1);
        let mut other = config.clone();
        other.metrics = Some(super::MetricsConfig { listen: "127.0.0.1:9464".parse().unwrap() });
        assert_eq!(config.plan().agreement, other.plan().agreement);
        other.metrics = Some(super::MetricsConfig { listen: "unix:@a".parse().unwrap() });
        assert!(other.check().unwrap_err().to_string().contains("write `host:port`"));
    }
}
