#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# library.sh CMAKE BUILD: installs the build into a new folder, compiles the programs of docs/library.md
# there, with the archive and with the shared library, and runs them as their first lines say. Looks at
# what the installed headers include, and what the shared library exports.
set -euo pipefail
cmake=$1
build=$(realpath "$2")
source=$(realpath "$(dirname "$0")/../..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/usr
export OMP_WAIT_POLICY=passive

failed() {
  echo "FAILED: $*"
  tail -n 30 "$work"/*.log 2>/dev/null || true
  exit 1
}
"$cmake" --install "$build" --prefix "$prefix" >"$work/install.log" || failed "cmake --install"
cd "$work" # nothing may depend on the current folder
millrace=$prefix/bin/millrace
lib=$prefix/${LIBRARY_FOLDER:-lib}

echo "== headers"
mapfile -t headers < <(find "$prefix/include/millrace" -name '*.h*')
lines=$(cat "${headers[@]}" | wc -l)
echo "${#headers[@]} headers of $lines lines"
((lines < 2500)) || failed "the installed headers are to stay below 2500 lines"
if grep -nE '#include <(Kokkos|mpi|nlohmann|H5|hdf5|toml|oneapi)' "${headers[@]}"; then failed "a header of another library"; fi
if grep -nE 'MILLRACE_ASSERT|print_error|SampleOrder|CheckpointReader' "${headers[@]}"; then failed "a name of millrace's own"; fi
[[ $(grep -cE '^[a-z].*millrace_[a-z_]+\(' "$prefix/include/millrace/millrace.h") == 15 ]] || failed "not fifteen functions"
echo '#include <millrace/millrace.h>' | cc -std=c99 -Wall -Wextra -Werror -pedantic -fsyntax-only -I "$prefix/include" -xc - ||
  failed "millrace.h is no C"

echo "== the shared library"
shared=$lib/libmillrace.so
echo "$(stat -Lc %s "$shared") bytes"
[[ $(stat -Lc %s "$shared") -lt 15000000 ]] || failed "it has $(stat -Lc %s "$shared") bytes"
if ldd "$shared" | grep -E "not found|$build|/\.cache/"; then failed "what it is linked to"; fi
# What the programs below do not call is there, too.
echo '#include <millrace/millrace.hpp>
int main(int count, char**) {
  const millrace::Runtime runtime;
  if (count > 1) (void)millrace::validate(runtime, millrace::parse_recipe("").logging.place);
  (void)millrace::io::plain_scaling({1, 1, 3});
  const millrace::Run run = {.length = {.iterations = 3}, .update = {.weight_decay = 0.1}, .layout = {.shards = 2}};
  return run.length.epochs || millrace::Images{.train = nullptr}.validation ? 1 : 0;
}' | c++ -std=c++20 -Wall -Wextra -Werror -xc++ - -I "$prefix/include" -L "$lib" -lmillrace -lfmt -o rest || failed "a function is not exported"
# What is not ours stays inside, so that a program may have another version of it.
nm -DC --defined-only "$shared" | grep -vE ' (A|[A-Za-z] (millrace_|millrace::|(typeinfo( name)?|vtable) for millrace::))' >exports.txt || true
[[ ! -s exports.txt ]] || failed "it exports $(head -n 3 exports.txt)"

echo "== the programs of docs/library.md"
mkdir programs
# A block begins with a line "// NAME WORDS: what it does".
awk '/^```/ { file = ""; first = !open; open = !open; next }
  first && /^(\/\/|#) [a-z_]+\.(cpp|py)[ :]/ { file = "programs/" $2; sub(/:$/, "", file) }
  { first = 0 } file { print > file }' "$source/docs/library.md"
names=(train finetune classify own_loss own_images ranks)
cat >programs/CMakeLists.txt <<END
cmake_minimum_required(VERSION 3.24)
project(programs LANGUAGES C CXX)
find_package(millrace REQUIRED)
set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI REQUIRED COMPONENTS CXX)
foreach(name IN ITEMS ${names[@]})
  add_executable(\${name} \${name}.cpp)
  target_compile_options(\${name} PRIVATE -Wall -Wextra -Werror)
  target_link_libraries(\${name} PRIVATE millrace::millrace)
endforeach()
target_link_libraries(ranks PRIVATE MPI::MPI_CXX)
END
for kind in OFF ON; do
  begin=$SECONDS
  "$cmake" -S programs -B "shared-$kind" -D CMAKE_BUILD_TYPE=Release -D CMAKE_PREFIX_PATH="$prefix" \
    -D BUILD_SHARED_LIBS=$kind >"build-$kind.log" 2>&1 || failed "they cannot be configured"
  "$cmake" --build "shared-$kind" -j 2 >>"build-$kind.log" 2>&1 || failed "they cannot be built"
  echo "BUILD_SHARED_LIBS=$kind: ${#names[@]} programs built in $((SECONDS - begin)) s"
done

# What they read: figures as CIFAR-10 and as photos, and a network of torchvision's names.
"$millrace" data generate data --train-images 256 --test-images 100 >data.log
python3 - <<'END'
import pathlib, struct, zlib
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
for split, count in (("train", 8), ("val", 4)):
    for color, name in ((0, "blue"), (2, "red")):
        folder = pathlib.Path("photos", split, name)
        folder.mkdir(parents=True)
        for n in range(count):
            row = b"\0" + bytes(40 + n if i % 3 == color else 200 for i in range(3 * 64))
            (folder / f"{n}.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0))
                + chunk(b"IDAT", zlib.compress(row * 64)) + chunk(b"IEND", b""))
END
"$millrace" train --dataset imagenet --synthetic-data --model-size 18 --image-size 64 --batch-size 1 --iterations 1 \
  --batch-norm --padding torch --stage-one-shortcut identity --no-validation --run-dir made >made.log 2>&1 || failed "no pretrained network"
"$millrace" export made --like torchvision --output resnet18.safetensors >made.log 2>&1 || failed "millrace export"

run() { # NAME WORDS..: both programs of that name, which print nothing but what they say themselves
  local name=$1
  shift
  for kind in OFF ON; do
    "shared-$kind/$name" "${@//RUNS/runs-$kind}" >"$name-$kind.txt" 2>"$name-$kind.err" ||
      failed "$name: $(cat "$name-$kind.txt" "$name-$kind.err")"
    [[ ! -s $name-$kind.err ]] || failed "$name prints $(cat "$name-$kind.err")"
  done
  sed 's/^/  /' "$name-ON.txt"
}
digest() { "$millrace" inspect "$1" --digest; }
same() { # WHAT RUN RUN..
  local what=$1 first
  shift
  first=$(digest "$1")
  for other in "${@:2}"; do [[ $(digest "$other") == "$first" ]] || failed "$what: $other has other weights than $1"; done
}

echo "== train"
run train data RUNS
"$millrace" train --config resnet20-cifar10 --data-dir data --epochs 1 --threads-per-device 1 \
  --run-dir command >command.log 2>&1 || failed "the command"
same "train(run) and the command" command runs-OFF/* runs-ON/*
"$millrace" validate --restore-path runs-ON/* >validate.log || failed "millrace validate"
"$millrace" report runs-ON/* --output report.html >report.log 2>&1 || failed "millrace report"
mv runs-OFF trained-OFF && mv runs-ON trained-ON

echo "== fine-tune and classify"
run finetune photos resnet18.safetensors RUNS
same "fine-tuning" runs-OFF/* runs-ON/*
run classify "$(echo runs-ON/*)" photos/val/{blue,red}/0.png
grep -qE '^ +[0-9.]+ %  (blue|red)$' classify-ON.txt || failed "classify names no class"
"$millrace" predict runs-ON/* photos/val/{blue,red}/0.png --json --logits logits.npy >predict.log || failed "millrace predict"
"$millrace" export runs-ON/* --to onnx --output exported.onnx >export.log || failed "millrace export"
python3 programs/classify.py "$shared" runs-ON/* photos/val/{blue,red}/0.png | tee python.txt
[[ $(awk '/: class / { sub(",", "", $3); print $3 }' python.txt) == "$(sed -E 's/.*"top":\[\{"class":([0-9]+).*/\1/' predict.log)" ]] ||
  failed "Python finds other classes than millrace predict"
python3 - "$shared" <<'END' # what goes wrong is told in the keys of the configuration
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
lib.millrace_last_error.restype = ctypes.c_char_p
lib.millrace_create.restype = ctypes.c_void_p
text = b'[data]\ndataset = "cifar-10"\ngenerated-data = true\n[device]\nthreads-per-device = 2\n'
assert not lib.millrace_create(text, 1)
assert lib.millrace_last_error().startswith(b"threads-per-device 2: the Runtime has 1 thread"), lib.millrace_last_error()
END
if python3 programs/classify.py "$shared" nowhere 2>python.err; then failed "a run that is not there"; fi
grep -q "nowhere" python.err || failed "the error in Python: $(cat python.err)"
rm -r runs-OFF runs-ON

echo "== a loss of its own"
run own_loss RUNS
grep -qE '^new images: accuracy (9[5-9]|100)\.' own_loss-ON.txt || failed "it has not learned"
same "own loss" runs-OFF/ckpt-100 runs-ON/ckpt-100
"$millrace" report runs-ON >report.log 2>&1 || failed "millrace report"
grep -q "there are no curves" report.log || failed "the report of a checkpoint: $(cat report.log)"
if "$millrace" restore runs-ON >restore.log 2>&1; then failed "a program's images in a command"; fi
grep -q "only that program can continue it" restore.log || failed "$(cat restore.log)"
rm -r runs-OFF runs-ON

echo "== images of its own"
run own_images RUNS
grep -qE ': accuracy (9[5-9]|100)\.' own_images-ON.txt || failed "it has not learned"
same "own images" runs-OFF/* runs-ON/*
rm -r runs-OFF runs-ON

echo "== some ranks of an MPI program"
for kind in OFF ON; do
  "$source/tests/support/mpirun.sh" mpirun -n 3 "shared-$kind/ranks" "runs-$kind" >ranks.txt 2>&1 || failed "$(cat ranks.txt)"
done
same "ranks" runs-OFF/* runs-ON/*
echo "all tests passed"
