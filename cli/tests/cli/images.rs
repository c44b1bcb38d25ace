//! Images: imported, listed, used, removed.

use crate::harness::Home;

fn list(home: &Home) -> Vec<serde_json::Value> {
    serde_json::from_str(&home.run(["image", "ls", "--json"]).code(0).stdout).unwrap()
}

/// An archive with one file.
fn archive() -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("file"), "content").unwrap();
    let mut command = std::process::Command::new("tar");
    command.arg("-C").arg(directory.path()).args(["-cf", "-", "."]).output().unwrap().stdout
}

#[test]
fn an_image_is_imported_used_and_removed_when_nobody_needs_it() {
    let home = Home::new("ready");
    assert_eq!(list(&home)[0]["tag"], "lilbox/base");
    assert_eq!(
        home.run_with(["image", "import", "-", "--tag", "mine:1"], &archive()).code(0).stdout,
        "mine:1\n"
    );
    let image = list(&home).pop().unwrap();
    let path = std::path::PathBuf::from(image["path"].as_str().unwrap());
    assert_eq!(
        (&image["tag"], image["size_bytes"].as_u64()),
        (&"mine:1".into(), Some(path.metadata().unwrap().len()))
    );
    assert!(home.run(["image", "ls"]).code(0).stdout.contains("mine:1"));
    let _ = home.run(["new", "web", "--image", "mine:1"]).code(0);
    let _ = home.run(["image", "rm", "mine:1"]).code(0);
    assert!(path.exists(), "a box needs it");
    let _ = home.run(["image", "rm", "mine:1"]).code(1).says(&["error[image_not_found]"]);
    let _ = home.run(["restart", "web"]).code(0);
    let _ = home.run(["rm", "-f", "web"]).code(0);
    assert!(!path.exists());
}

#[test]
fn directories_archives_and_file_systems_are_used_by_their_path() {
    let home = Home::new("ready");
    let root = home.path("root");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("file"), "content").unwrap();
    let tar = home.path("root.tar");
    std::fs::write(&tar, archive()).unwrap();
    let file_system = home.path("share/base.erofs");
    for image in [&root, &tar, &file_system] {
        let _ = home.run(["run", "--image", image.to_str().unwrap(), "--", "exit", "5"]).code(5);
    }
    let mut command = home.lilbox(["run", "--image", "./root", "--", "exit", "5"]);
    let _ = crate::harness::Ended::of({
        command.current_dir(home.path("."));
        command
    })
    .code(5);
    std::fs::write(home.path("garbage"), vec![1; 5000]).unwrap();
    let garbage = home.path("garbage");
    let _ = home
        .run(["run", "--image", garbage.to_str().unwrap(), "--", "exit", "5"])
        .code(125)
        .says(&["error[image_invalid]", "neither a directory, a tar archive nor"]);
    let _ = home
        .run_with(["image", "import", "-", "--tag", "x"], &[1; 5000])
        .code(1)
        .says(&["error[image_invalid]"]);
}

#[test]
fn a_box_keeps_the_image_it_was_made_from() {
    let home = Home::new("ready");
    let _ = home.run(["new", "web"]).code(0);
    // A new installation: another base image under the same name.
    let description = std::fs::read_to_string(home.path("share/base.json")).unwrap();
    std::fs::remove_file(home.path("share/base.erofs")).unwrap();
    std::fs::write(home.path("share/base.erofs"), vec![0; 4096]).unwrap();
    std::fs::write(home.path("share/base.json"), description.replace("\"one\"", "\"two\""))
        .unwrap();
    let _ = home.run(["restart", "web"]).code(0);
    let _ = home.run(["new"]).code(1).says(&["error[image_invalid]"]);

    // A file that the user gave cannot be kept: it is missed when it changes.
    let image = home.path("image.erofs");
    let erofs = [&[0; 1024][..], &0xE0F5_E1E2_u32.to_le_bytes(), &[0; 4096]].concat();
    std::fs::write(&image, &erofs).unwrap();
    let _ = home.run(["new", "own", "--image", image.to_str().unwrap()]).code(0);
    std::fs::write(&image, [&erofs[..], &[0; 4096]].concat()).unwrap();
    let _ = home
        .run(["restart", "own"])
        .code(1)
        .says(&["error[image_invalid]", "was replaced since box 'own' was made"]);
    std::fs::remove_file(&image).unwrap();
    let _ = home.run(["start", "own"]).code(1).says(&["error[image_not_found]"]);
}
