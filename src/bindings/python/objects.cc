// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/objects.h"

namespace mcr::python {

std::string utf8_of(PyObject* text, std::string_view otherwise) {
  const Owner bytes(text != nullptr && PyUnicode_Check(text) != 0
                        ? PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace")
                        : nullptr);
  if (bytes == nullptr) {
    PyErr_Clear();
    return std::string(otherwise);
  }
  return {PyBytes_AS_STRING(bytes.get()), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.get()))};
}

PyObject* str_of(std::string_view text) {
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
}

std::string represented(PyObject* value) {
  const Owner text(PyObject_Repr(value));
  return utf8_of(text.get(), Py_TYPE(value)->tp_name);
}

Owner entries_of(PyObject* iterable) {
  Owner tuple(PySequence_Tuple(iterable));
  if (tuple == nullptr) PyErr_Clear();
  return tuple;
}

}  // namespace mcr::python
