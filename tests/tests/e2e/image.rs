//! Images: what a tar archive lists is what the guest's kernel sees.

use std::fmt::Write;
use tests::Lab;

trials![the_guest_sees_every_entry_of_the_archive, an_imported_image_boots_by_its_tag];

/// Makes an archive with Python's own tar writer (no code shared with the product) and prints what it holds.
const MAKE: &str = r#"
import io, tarfile, sys, hashlib
path = sys.argv[1]
tar = tarfile.open(path, "w", format=tarfile.PAX_FORMAT)
def add(name, kind, data=b"", **fields):
    entry = tarfile.TarInfo(name)
    entry.type, entry.size, entry.mode, entry.mtime = kind, len(data), fields.pop("mode", 0o644), 1234567890
    pax = fields.pop("pax", {})
    for key, value in fields.items(): setattr(entry, key, value)
    entry.pax_headers = pax
    tar.addfile(entry, io.BytesIO(data) if kind == tarfile.REGTYPE else None)
add("d", tarfile.DIRTYPE, mode=0o1777)
add("d/suid", tarfile.REGTYPE, b"x", mode=0o4755, uid=12, gid=34)
add("d/big-ids", tarfile.REGTYPE, b"", uid=3000000, gid=4000000)
add("d/hole", tarfile.REGTYPE, b"\0" * 100000 + b"end")
add("d/" + "n" * 255, tarfile.REGTYPE, b"long name")
add("d/\udcff\udcfe", tarfile.REGTYPE, b"not UTF-8")
add("d/link", tarfile.SYMTYPE, linkname="../d/suid", mode=0o777)
add("d/long-link", tarfile.SYMTYPE, linkname="t" * 3000, mode=0o777)
add("d/hard", tarfile.LNKTYPE, linkname="d/suid", mode=0o4755, uid=12, gid=34)
add("d/char", tarfile.CHRTYPE, devmajor=5, devminor=1, mode=0o600)
add("d/block", tarfile.BLKTYPE, devmajor=259, devminor=70000, mode=0o640)
add("d/fifo", tarfile.FIFOTYPE, mode=0o600)
add("d/xattr", tarfile.REGTYPE, b"x", pax={"SCHILY.xattr.user.note": "hello", "SCHILY.xattr.trusted.t": "v"})
add("d/cap", tarfile.REGTYPE, b"x", pax={"SCHILY.xattr.security.capability": "\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0"})
add("many", tarfile.DIRTYPE, mode=0o755)
for number in range(3000): add("many/file-%05d" % number, tarfile.REGTYPE, b"%d" % number)
for size in (0, 1, 4095, 4096, 4097, 200000): add("d/size-%d" % size, tarfile.REGTYPE, bytes(i * 7 % 251 for i in range(size)))
tar.close()
"#;

/// Prints one line per entry below a directory: everything that can be told apart from outside.
const LIST: &str = r#"
import os, sys, stat, hashlib
root = os.fsencode(sys.argv[1])
inodes = {}
def show(path):
    status = os.lstat(path)
    kind = stat.S_IFMT(status.st_mode)
    what = b""
    if kind == stat.S_IFREG: what = hashlib.sha256(open(path, "rb").read()).hexdigest()[:16].encode()
    if kind == stat.S_IFLNK: what = hashlib.sha256(os.readlink(path)).hexdigest()[:16].encode()
    if kind in (stat.S_IFCHR, stat.S_IFBLK): what = b"%d:%d" % (os.major(status.st_rdev), os.minor(status.st_rdev))
    first = inodes.setdefault(status.st_ino, path)
    names = [] if kind == stat.S_IFLNK else sorted(os.listxattr(path, follow_symlinks=False))
    attributes = ["%s=%s" % (name, os.getxattr(path, name, follow_symlinks=False).hex()) for name in names]
    links = status.st_nlink if kind != stat.S_IFDIR else 0
    line = "%r %o %d %d %d %d %s %s %r" % (path[len(root):], status.st_mode, status.st_uid, status.st_gid, links,
        int(status.st_mtime), what.decode(), ",".join(attributes), first[len(root):])
    print(line)
def walk(path):
    for name in sorted(os.listdir(path)):
        child = os.path.join(path, name)
        show(child)
        if stat.S_ISDIR(os.lstat(child).st_mode): walk(child)
walk(root)
"#;

/// The same archive, unpacked by the guest's own tar on ext4 and mounted as the image that lilbox made of it, must
/// look the same to the guest's kernel.
fn the_guest_sees_every_entry_of_the_archive() {
    let lab = Lab::new();
    let sandbox = lab.boot([]);
    let python = |script: &str, argument: &str| {
        sandbox.command(["python3", "-", argument]).stdin(script).run().assert_code(0).stdout_text()
    };
    let _ = python(MAKE, "/root/image.tar");
    let archive = lab.home().join("image.tar");
    std::fs::write(&archive, sandbox.exec(["cat", "/root/image.tar"]).assert_code(0).stdout)
        .expect("write");
    let archive = archive.to_str().expect("UTF-8");
    let _ = lab.lilbox(["image", "import", archive, "--tag", "odd"]).run().assert_code(0);
    let images: serde_json::Value =
        serde_json::from_str(&lab.lilbox(["image", "ls", "--json"]).text()).expect("JSON");
    let image = images
        .as_array()
        .expect("a list")
        .iter()
        .find(|image| image["tag"] == "odd")
        .expect("the image");
    let image = std::fs::read(image["path"].as_str().expect("a path")).expect("read the image");
    let _ =
        sandbox.command(["sh", "-c", "cat > /root/image.erofs"]).stdin(image).run().assert_code(0);
    let unpack = "mkdir /srv/tar /srv/erofs && tar -x --xattrs --xattrs-include='*' --same-owner -pf /root/image.tar -C /srv/tar \
                  && mount -t erofs -o loop,ro /root/image.erofs /srv/erofs";
    let _ = sandbox.sh(unpack);
    let (expected, found) = (python(LIST, "/srv/tar"), python(LIST, "/srv/erofs"));
    let mut differences = String::new();
    for (expected, found) in
        expected.lines().zip(found.lines()).filter(|(expected, found)| expected != found)
    {
        let _ = writeln!(differences, "- {expected}\n+ {found}");
    }
    assert!(
        differences.is_empty() && expected.lines().count() == found.lines().count(),
        "{differences}"
    );
    assert!(found.lines().count() > 3000);
}

fn an_imported_image_boots_by_its_tag() {
    let lab = Lab::new();
    let sandbox = lab.boot([]);
    // A root file system made of the box's own, with a mark of its own.
    let script = "echo mine > /etc/mark && tar -C / --one-file-system -cf - bin sbin lib lib64 etc usr/bin/cat usr/bin/sh \
                  usr/bin/dash usr/lib/x86_64-linux-gnu/libc.so.6 \
                  usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 usr/lib64";
    let archive = sandbox.exec(["sh", "-c", script]).assert_code(0).stdout;
    let import = lab.lilbox(["image", "import", "-", "--tag", "mine:1"]).stdin(archive);
    let _ = import.run().assert_code(0);
    let _ = lab
        .run(["--image", "mine:1", "--", "cat", "/etc/mark"])
        .assert_code(0)
        .assert_stdout("mine\n");
}
