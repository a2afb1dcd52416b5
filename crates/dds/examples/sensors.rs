//! Three sensors write readings and alarms; a display joins later, finds the latest reading of each, and waits for alarms. Participants
//! are threads here; as processes they would use the same code.
//!
//! ```text
//! cargo run --release -p squall-dds --example sensors
//! ```

use std::error::Error;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use squall::Config;
use squall_dds::{
    DomainParticipant, DurabilityService, HistoryKind, InstanceState, Keyed, ParticipantError, Qos,
    StateMask, StatusKind,
};

// ANCHOR: type
#[derive(Serialize, Deserialize)]
struct Reading {
    sensor: u32,
    celsius: f32,
}

/// Each sensor is an instance.
impl Keyed for Reading {
    const TYPE_NAME: &'static str = "Reading";
    type Key = u32;

    fn key(&self) -> u32 {
        self.sensor
    }
}
// ANCHOR_END: type

const SENSORS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(30);

// ANCHOR: join
/// Readings are kept, the latest one of each sensor; alarms are not.
fn readings_qos() -> Qos {
    let service = DurabilityService { history: HistoryKind::KeepLast(1), ..DurabilityService::EVERYTHING };
    Qos { durability_service: Some(service), max_blocking_time: PATIENCE, ..Qos::KEPT }
}

/// Joins the domain. All participants name the same topics.
fn join(config: Config) -> Result<DomainParticipant, ParticipantError> {
    DomainParticipant::builder(config).topic("readings", readings_qos()).topic("alarms", Qos::ATOMIC).join()
}
// ANCHOR_END: join

// ANCHOR: write
/// Writes readings, and says so; when the display is there, an alarm; then leaves.
fn run_sensor(
    config: Config,
    sensor: u32,
    written: &Sender<u32>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let participant = join(config)?;
    let readings = participant.writer(&participant.topic::<Reading>("readings")?, readings_qos())?;
    for step in 0..100u8 {
        readings.write(&Reading { sensor, celsius: 20.0 + f32::from(step) / 10.0 })?;
    }
    written.send(sensor)?;
    let alarms = participant.topic::<Vec<u8>>("alarms")?;
    let alarms = participant.writer(&alarms, Qos { max_blocking_time: PATIENCE, ..Qos::ATOMIC })?;
    let mut wait_set = participant.wait_set();
    wait_set.attach(alarms.status_condition(StatusKind::Matched))?;
    wait_set.wait(PATIENCE)?;
    alarms.write(&format!("sensor {sensor} is hot").into_bytes())?;
    alarms.wait_for_acknowledgments(PATIENCE)?;
    drop((readings, alarms));
    println!("sensor {sensor} leaves: {:?}", participant.leave(PATIENCE));
    Ok(())
}
// ANCHOR_END: write

// ANCHOR: read
/// Shows the latest readings and the alarms, until all sensors have gone.
fn run_display(config: Config) -> Result<(), Box<dyn Error + Send + Sync>> {
    let participant = join(config)?;
    let readings = participant.reader(&participant.topic::<Reading>("readings")?, readings_qos())?;
    let alarms = participant.reader(&participant.topic::<Vec<u8>>("alarms")?, Qos::ATOMIC)?;
    readings.wait_for_historical_data(PATIENCE)?;
    let mut wait_set = participant.wait_set();
    wait_set.attach(readings.read_condition(StateMask::ANY))?;
    wait_set.attach(alarms.read_condition(StateMask::ANY))?;
    let (mut alarm_count, mut gone) = (0, 0);
    while alarm_count < SENSORS || gone < SENSORS {
        wait_set.wait(PATIENCE)?;
        for sample in readings.take(100)? {
            match sample.data {
                Some(Reading { sensor, celsius }) => println!("sensor {sensor}: {celsius:.1} °C"),
                None if sample.info.instance_state != InstanceState::Alive => gone += 1,
                None => {}
            }
        }
        for alarm in alarms.take(100)?.into_iter().filter_map(|sample| sample.data) {
            println!("alarm: {}", String::from_utf8_lossy(&alarm));
            alarm_count += 1;
        }
    }
    Ok(())
}
// ANCHOR_END: read

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let config = Config::local(&format!("sensors-{}", std::process::id()), SENSORS);
    let (written, has_written) = mpsc::channel();
    let sensors: Vec<_> = (0..SENSORS)
        .map(|rank| {
            let (config, written) = (config.clone().for_rank(rank), written.clone());
            thread::spawn(move || run_sensor(config, u32::try_from(rank).expect("sensors are few"), &written))
        })
        .collect();
    // A sensor that fails ends its own end of the channel.
    drop(written);
    for _ in 0..SENSORS {
        println!("sensor {} has written its readings", has_written.recv()?);
    }
    run_display(config.for_rank(SENSORS))?;
    for sensor in sensors {
        sensor.join().expect("a sensor does not panic")?;
    }
    Ok(())
}
