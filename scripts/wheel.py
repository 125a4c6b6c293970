#!/usr/bin/env python3
"""wheel.py BUILD_DIR DIST_DIR: packs the Python package of a build as DIST_DIR/megalith-VERSION-cpXY-cpXY-linux_ARCH.whl; the
VERSION of one with CUDA ends with +cu13, or whichever major version of CUDA its torch has.

The wheel depends on the torch that it was built for, and on nothing else: libtorch is torch's own, found beside the package
(site-packages/torch/lib), the C++ library is the system's, which torch needs too, and all other libraries are inside. It runs on
any Linux whose glibc and libstdc++ are not older than those of the machine that it was built on.

Called by scripts/wheel.sh with the Python that the package was built for.
"""

import base64
import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

# Libraries that are not packed: glibc's, the C++ runtime, and those that come with torch.
SYSTEM = re.compile(r"^(libc|libm|libdl|librt|libpthread|libutil|libresolv|libanl|libstdc\+\+|libgcc_s)\.so|^ld-linux")
TORCH = re.compile(
    r"^lib(torch|c10|gomp|shm|nccl|nvrtc|nvToolsExt|nvJitLink|nvshmem|nvidia"
    r"|cuda|cupti|cublas|cudnn|cufile|cufft|curand|cusolver|cusparse)"
)
ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(*command):
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True).stdout


def needed_libraries(binaries):
    """Returns name and path of every library to pack."""
    found = {}
    for line in run("ldd", *binaries).splitlines():
        name, arrow, path = (line.strip().split() + ["", ""])[:3]
        if arrow != "=>" or SYSTEM.match(name) or TORCH.match(name):
            continue
        if not path.startswith("/"):
            sys.exit(f"wheel.py: {name} is missing")
        found[name] = path
    return found


def set_search_path(binary, path, work):
    """Replaces the search path of a program or library, which must not be shorter than the new one."""
    script = work / "rpath.cmake"
    script.write_text('file(RPATH_SET FILE "${FILE}" NEW_RPATH "${NEW}")\n')
    run("cmake", f"-DFILE={binary}", f"-DNEW={path}", "-P", script)


def stage_package(build, stage, work):
    """Copies the package into `stage`, with the program and the libraries that both need."""
    package = stage / "megalith"
    shutil.copytree(build / "python" / "megalith", package, ignore=shutil.ignore_patterns("__pycache__", "bin", "lib"))
    run("cmake", "--install", build, "--prefix", work / "program", "--component", "program")
    for folder in ("bin", "lib", "licenses"):
        (package / folder).mkdir()
    program = shutil.copy2(work / "program" / "bin" / "megalith", package / "bin" / "megalith")
    module = next(package.glob("_megalith*.so"))
    plugins = [shutil.copy2(each, package / "lib") for each in (build / "lib").glob("libmegalith_arrow.so")]
    # Before search paths are cut, ldd still finds everything where the build found it.
    originals = [build / "bin" / "megalith", build / "python" / "megalith" / module.name]
    originals += (build / "lib").glob("libmegalith_arrow.so")
    for name, path in sorted(needed_libraries(originals).items()):
        shutil.copy2(os.path.realpath(path), package / "lib" / name)
        copy_license(os.path.realpath(path), package / "licenses")
    for binary, path in [
        (program, "$ORIGIN/../lib:$ORIGIN/../../torch/lib"),
        (module, "$ORIGIN/lib:$ORIGIN/../torch/lib"),
        *((each, "$ORIGIN:$ORIGIN/../../torch/lib") for each in plugins),
    ]:
        os.chmod(binary, 0o755)
        run("strip", "--strip-unneeded", binary)
        set_search_path(binary, path, work)
    license_text = ROOT / "LICENSE"
    if license_text.exists():
        shutil.copy2(license_text, package / "licenses")


def copy_license(library, folder):
    """Debian keeps the licence with the package that owns the library."""
    owner = subprocess.run(["dpkg-query", "-S", library], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    name = owner.stdout.split(":")[0]
    text = pathlib.Path("/usr/share/doc") / name / "copyright"
    if owner.returncode == 0 and text.exists():
        shutil.copy(text, folder / f"{name}.txt")


def metadata(version, torch_version, cuda_version):
    device = f"NVIDIA GPUs, with CUDA {cuda_version}" if cuda_version else "CPUs"
    return f"""Metadata-Version: 2.1
Name: megalith
Version: {version}
Summary: A C++ trainer for large language models, with its program and its library for Python
Requires-Python: =={sys.version_info.major}.{sys.version_info.minor}.*
Requires-Dist: torch=={torch_version}
Description-Content-Type: text/markdown

Megalith trains large language models in every parallel layout. This package brings the program `megalith` and the library, for
{device}:

    pip install megalith
    megalith --help
    python -c "import megalith; help(megalith)"
"""


def write_wheel(stage, target, version, torch_version, cuda_version, tag):
    """Packs the staged files with their metadata and the list of hashes that pip checks."""
    info = stage / f"megalith-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(metadata(version, torch_version, cuda_version))
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: megalith\nRoot-Is-Purelib: false\nTag: {tag}\n")
    (info / "entry_points.txt").write_text("[console_scripts]\nmegalith = megalith.__main__:main\n")
    record = []
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as wheel:
        for path in sorted(each for each in stage.rglob("*") if each.is_file()):
            name = path.relative_to(stage).as_posix()
            data = path.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))  # the same files give the same wheel
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if os.access(path, os.X_OK) else 0o100644) << 16
            wheel.writestr(entry, data)
        name = f"{info.name}/RECORD"
        wheel.writestr(name, "".join(record) + f"{name},,\n")


def main():
    build, dist = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    versions = {}
    exec((build / "python" / "megalith" / "_version.py").read_text(), versions)
    cuda = versions["cuda_version"]
    version = versions["version"] + (f"+cu{cuda}" if cuda else "")
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    tag = f"{python}-{python}-linux_{platform.machine()}"
    dist.mkdir(parents=True, exist_ok=True)
    target = dist / f"megalith-{version}-{tag}.whl"
    with tempfile.TemporaryDirectory(dir=dist) as folder:
        work = pathlib.Path(folder)
        (work / "stage").mkdir()
        stage_package(build, work / "stage", work)
        write_wheel(work / "stage", work / target.name, version, versions["torch_version"], cuda, tag)
        os.replace(work / target.name, target)
    print(f"{target} ({target.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
