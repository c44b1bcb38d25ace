use super::*;
use crate::home::Home;
use crate::image::ImageConfig;
use crate::install::{Install, Told};
use crate::lock::Gate;
use crate::paths::{Dirs, Environment};

fn open() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("state.db")).unwrap();
    (directory, store)
}

fn spec() -> BoxSpec {
    crate::spec::resolve(&crate::spec::Options::default()).unwrap()
}

fn add(store: &Store, id: u8, name: &str, ephemeral: bool) -> Result<BoxId> {
    add_from(store, id, name, ephemeral, Path::new("/image"))
}

fn add_from(store: &Store, id: u8, name: &str, ephemeral: bool, file: &Path) -> Result<BoxId> {
    let id = BoxId::from_random([id; 6]);
    let config = ImageConfig { env: vec!["A=b".into()], ..ImageConfig::default() };
    let image = ResolvedImage { digest: "d".into(), file: file.into(), config };
    let name = name.parse().unwrap();
    let new = NewBox {
        id: &id,
        name: &name,
        spec: &spec(),
        image: &image,
        ephemeral,
        created_at_ms: id.as_str().len() as i64,
    };
    store.reserve(&new)?;
    Ok(id)
}

#[test]
fn a_row_is_creating_until_it_is_committed() {
    let (_directory, store) = open();
    let id = add(&store, 1, "web", false).unwrap();
    let record = store.find("web").unwrap();
    assert_eq!((record.state, record.ephemeral, &record.spec), (State::Creating, false, &spec()));
    assert_eq!(record.image_config.env, ["A=b"]);
    assert_eq!(store.owned().unwrap().len(), 1);
    store.commit(&id).unwrap();
    assert_eq!(store.find("web").unwrap().state, State::Created);
    assert!(store.owned().unwrap().is_empty());
    store.remove(&id).unwrap();
    assert!(store.boxes().unwrap().is_empty());
    assert!(store.commit(&id).is_err(), "a row that is gone cannot be committed");
}

#[test]
fn of_two_boxes_of_one_name_one_wins() {
    let (directory, store) = open();
    let other = Store::open(&directory.path().join("state.db")).unwrap();
    add(&store, 1, "web", false).unwrap();
    assert!(
        matches!(add(&other, 2, "web", false), Err(Error::BoxExists(name)) if name.as_str() == "web")
    );
}

#[test]
fn an_unknown_name_gives_those_that_look_like_it() {
    let (_directory, store) = open();
    add(&store, 1, "worker", true).unwrap();
    match store.find("wroker") {
        Err(Error::BoxNotFound { name, similar }) => {
            assert_eq!((name.as_str(), similar.as_slice()), ("wroker", &["worker".to_owned()][..]));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_newer_database_is_left_alone() {
    let (directory, store) = open();
    let newer = migrations::latest() + 1;
    store.connection.pragma_update(None, "user_version", newer).unwrap();
    drop(store);
    let result = Store::open(&directory.path().join("state.db"));
    assert!(matches!(result, Err(Error::StateNewer { found, .. }) if found == newer));
}

#[test]
fn many_processes_may_open_a_new_database_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    std::thread::scope(|scope| {
        for index in 0..8 {
            let path = &path;
            scope.spawn(move || {
                let store = Store::open(path).unwrap();
                add(&store, index, &format!("box{index}"), false).unwrap();
            });
        }
    });
    assert_eq!(Store::open(&path).unwrap().boxes().unwrap().len(), 8);
}

#[test]
fn the_files_are_their_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let (directory, _store) = open();
    let entries: Vec<_> =
        directory.path().read_dir().unwrap().map(|entry| entry.unwrap()).collect();
    assert!(
        entries.iter().all(|entry| entry.metadata().unwrap().permissions().mode() & 0o777 == 0o600),
        "{entries:?}"
    );
}

#[test]
fn a_file_that_is_not_a_database_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    std::fs::write(&path, vec![1; 8192]).unwrap();
    let error = Store::open(&path).unwrap_err();
    assert_eq!(error.code(), crate::Code::StateInvalid);
}

#[test]
fn an_image_replaces_the_one_of_its_tag() {
    let (_directory, store) = open();
    let image = |digest: &str| ImageRecord {
        tag: "mine:1".into(),
        source: "file".into(),
        digest: digest.into(),
        size_bytes: 7,
        config: ImageConfig::default(),
        created_at_ms: 1,
    };
    store.put_image(&image("one")).unwrap();
    store.put_image(&image("two")).unwrap();
    assert_eq!(store.images().unwrap(), [image("two")]);
    assert_eq!(store.image("mine:1").unwrap(), Some(image("two")));
    assert!(store.remove_image("mine:1").unwrap());
    assert!(!store.remove_image("mine:1").unwrap());
}

#[test]
fn a_path_that_is_no_text_is_refused_rather_than_changed() {
    use std::os::unix::ffi::OsStrExt;
    let (_directory, store) = open();
    let path = Path::new(std::ffi::OsStr::from_bytes(b"/images/\xff"));
    let error = add_from(&store, 1, "web", false, path).unwrap_err();
    assert_eq!(error.code(), crate::Code::InvalidValue);
    assert!(error.to_string().contains("not UTF-8"), "{error}");
    assert!(store.boxes().unwrap().is_empty());
}

#[test]
fn what_was_written_and_not_committed_is_undone() {
    let (directory, store) = open();
    let writing = store.writing(true).unwrap();
    add(&store, 1, "web", false).unwrap();
    drop(writing);
    assert!(store.boxes().unwrap().is_empty());
    let writing = store.writing(false).unwrap();
    add(&store, 1, "web", false).unwrap();
    writing.commit().unwrap();
    let other = Store::open(&directory.path().join("state.db")).unwrap();
    assert_eq!(other.boxes().unwrap().len(), 1);
}

/// With the gate taken by somebody else, a command that came to it would wait here for good.
#[test]
fn another_writer_is_waited_for_before_the_gate() {
    let directory = tempfile::tempdir().unwrap();
    let from = Environment { lilbox_home: Some(directory.path().into()), ..Environment::default() };
    let install = Install::locate(Path::new("/nowhere"), Told::default());
    let home = Home::open(Dirs::compute(&from).unwrap(), install).unwrap();
    home.store.connection.busy_timeout(Duration::ZERO).unwrap();
    let other = Store::open(&home.dirs.database()).unwrap();
    let _writing = other.writing(true).unwrap();
    let _gate = Gate::exclusive(&home.dirs.gate()).unwrap();
    let result = crate::image::remove(&home, "mine:1");
    assert!(matches!(result, Err(Error::State { operation: "begin to write", .. })), "{result:?}");
}
