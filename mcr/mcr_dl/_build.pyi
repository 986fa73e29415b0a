# Written by the build (CMakeLists.txt) and installed beside _C.
TORCH: str
