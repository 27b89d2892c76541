/* SPDX-License-Identifier: Apache-2.0 */
/* view.c: one tensor's checks. Everything is computed in 64 bits with overflow tests before a byte is touched. */
#include "core/view.h"

#include <stdio.h>
#include <string.h>

#include "core/arithmetic.h"

/* Largest byte extent of a view: offsets stay inside int64. */
#define ATTN_VIEW_MAX_BYTES ((uint64_t)INT64_MAX)

static attn_status check_device(const DLTensor *tensor, const char *name, attn_message *message) {
  DLDeviceType type = tensor->device.device_type;
  if (type != kDLCPU && type != kDLCUDAHost && type != kDLROCMHost) {
    return attn_fail(message, ATTN_E_TENSOR_DEVICE, "%s: device type %d, this context takes CPU tensors (type %d)",
                     name, (int)type, (int)kDLCPU);
  }
  return ATTN_OK;
}

/* "float32 | float16", for messages. */
static void list_dtypes(unsigned dtypes, char *text, size_t bytes) {
  size_t used = 0;
  text[0] = '\0';
#define ATTN_LIST_ONE(dtype, value, spelling, width, code, bits)                                                       \
  if ((dtypes & ATTN_DTYPE_BIT(dtype)) != 0 && used < bytes) {                                                         \
    int n = snprintf(text + used, bytes - used, "%s%s", used > 0 ? ", " : "", spelling);                               \
    used += n > 0 ? (size_t)n : 0;                                                                                     \
  }
  ATTN_DTYPE_LIST(ATTN_LIST_ONE)
#undef ATTN_LIST_ONE
}

static attn_status check_dtype(const DLTensor *tensor, const char *name, unsigned dtypes, attn_dtype *dtype,
                               attn_message *message) {
  *dtype = attn_dtype_from_dlpack(tensor->dtype);
  if (*dtype == ATTN_DTYPE_DEFAULT || (dtypes & ATTN_DTYPE_BIT(*dtype)) == 0) {
    char accepted[96];
    list_dtypes(dtypes, accepted, sizeof accepted);
    if (*dtype == ATTN_DTYPE_DEFAULT) {
      return attn_fail(message, ATTN_E_DTYPE, "%s: element type code %u, %u bits, %u lanes; accepted: %s", name,
                       (unsigned)tensor->dtype.code, (unsigned)tensor->dtype.bits, (unsigned)tensor->dtype.lanes,
                       accepted);
    }
    return attn_fail(message, ATTN_E_DTYPE, "%s: element type %s; accepted: %s", name, attn_dtype_name(*dtype),
                     accepted);
  }
  return ATTN_OK;
}

static attn_status check_shape(const DLTensor *tensor, const char *name, int32_t ndim, const int64_t *shape,
                               attn_message *message) {
  if (tensor->ndim != ndim) {
    return attn_fail(message, ATTN_E_SHAPE, "%s: rank %d, expected %d", name, (int)tensor->ndim, (int)ndim);
  }
  if (ndim > 0 && tensor->shape == NULL) {
    return attn_fail(message, ATTN_E_NULL, "%s: shape is NULL, expected %d extents", name, (int)ndim);
  }
  for (int32_t i = 0; i < ndim; i++) {
    if (tensor->shape[i] < 0) {
      return attn_fail(message, ATTN_E_SHAPE, "%s: axis %d has extent %lld, accepted: 0 or more", name, (int)i,
                       (long long)tensor->shape[i]);
    }
    if (shape[i] != ATTN_ANY && tensor->shape[i] != shape[i]) {
      return attn_fail(message, ATTN_E_SHAPE, "%s: axis %d has extent %lld, expected %lld", name, (int)i,
                       (long long)tensor->shape[i], (long long)shape[i]);
    }
  }
  return ATTN_OK;
}

static attn_status compact_strides(attn_view *view, const char *name, uint64_t element, attn_message *message) {
  uint64_t step = element;
  for (int32_t i = view->ndim - 1; i >= 0; i--) {
    view->stride[i] = (int64_t)step;
    uint64_t extent = view->shape[i] > 0 ? (uint64_t)view->shape[i] : 1;
    if (attn_mul_overflow(step, extent, &step) || step > ATTN_VIEW_MAX_BYTES) {
      return attn_fail(message, ATTN_E_OVERFLOW, "%s: its bytes do not fit 63 bits", name);
    }
  }
  return ATTN_OK;
}

static attn_status given_strides(attn_view *view, const DLTensor *tensor, const char *name, uint64_t element,
                                 attn_access access, attn_message *message) {
  for (int32_t i = 0; i < view->ndim; i++) {
    int64_t stride = tensor->strides[i];
    if (stride < 0) {
      return attn_fail(message, ATTN_E_STRIDE, "%s: axis %d has stride %lld, accepted: 0 or more", name, (int)i,
                       (long long)stride);
    }
    if (stride == 0 && access == ATTN_WRITE && view->shape[i] > 1) {
      return attn_fail(message, ATTN_E_STRIDE,
                       "%s: axis %d of an output has stride 0 over %lld elements, accepted: 1 or more", name, (int)i,
                       (long long)view->shape[i]);
    }
    uint64_t bytes;
    if (attn_mul_overflow((uint64_t)stride, element, &bytes) || bytes > ATTN_VIEW_MAX_BYTES) {
      /* a stride that is never stepped over may hold anything */
      if (view->shape[i] > 1) {
        return attn_fail(message, ATTN_E_OVERFLOW, "%s: axis %d, stride %lld: its bytes do not fit 63 bits", name,
                         (int)i, (long long)stride);
      }
      bytes = 0;
    }
    view->stride[i] = (int64_t)bytes;
  }
  return ATTN_OK;
}

static int is_empty(const attn_view *view) {
  for (int32_t i = 0; i < view->ndim; i++) {
    if (view->shape[i] == 0) {
      return 1;
    }
  }
  return 0;
}

/* Element count and byte extent fit 63 bits. */
static attn_status check_extent(const attn_view *view, const char *name, uint64_t element, attn_message *message) {
  uint64_t last = element;
  uint64_t count = 1;
  for (int32_t i = 0; i < view->ndim; i++) {
    uint64_t span;
    if (attn_mul_overflow((uint64_t)view->shape[i] - 1, (uint64_t)view->stride[i], &span) ||
        attn_add_overflow(last, span, &last) || attn_mul_overflow(count, (uint64_t)view->shape[i], &count) ||
        last > ATTN_VIEW_MAX_BYTES || count > ATTN_VIEW_MAX_BYTES / element) {
      return attn_fail(message, ATTN_E_OVERFLOW, "%s: its bytes do not fit 63 bits", name);
    }
  }
  if (last > (uint64_t)(UINTPTR_MAX - (uintptr_t)view->data)) {
    return attn_fail(message, ATTN_E_OVERFLOW, "%s: its last byte lies beyond the address space", name);
  }
  return ATTN_OK;
}

/* No two elements of an output share an address: sorted by stride, each axis steps over the span of the smaller ones.
   (Sufficient, and exact for every layout made by permuting, padding and slicing.) */
static attn_status check_injective(const attn_view *view, const char *name, uint64_t element, attn_message *message) {
  int32_t order[ATTN_VIEW_MAX_NDIM];
  int32_t n = 0;
  for (int32_t i = 0; i < view->ndim; i++) {
    if (view->shape[i] > 1) {
      int32_t at = n++;
      for (; at > 0 && view->stride[order[at - 1]] > view->stride[i]; at--) {
        order[at] = order[at - 1];
      }
      order[at] = i;
    }
  }
  uint64_t span = element; /* check_extent has shown that these sums fit */
  for (int32_t i = 0; i < n; i++) {
    int32_t axis = order[i];
    if ((uint64_t)view->stride[axis] < span) {
      return attn_fail(
          message, ATTN_E_STRIDE,
          "%s: axis %d of an output has stride %lld, elements would share addresses; accepted: %llu or more", name,
          (int)axis, (long long)view->stride[axis] / (long long)element,
          (unsigned long long)((span + element - 1) / element));
    }
    span += (uint64_t)view->stride[axis] * ((uint64_t)view->shape[axis] - 1);
  }
  return ATTN_OK;
}

attn_status attn_view_make(attn_view *view, const DLTensor *tensor, const char *name, attn_access access,
                           unsigned dtypes, int32_t ndim, const int64_t *shape, attn_message *message) {
  if (tensor == NULL) {
    return attn_fail(message, ATTN_E_NULL, "%s: NULL, expected a tensor", name);
  }
  attn_view made;
  memset(&made, 0, sizeof made);
  ATTN_TRY(check_device(tensor, name, message));
  ATTN_TRY(check_dtype(tensor, name, dtypes, &made.dtype, message));
  ATTN_TRY(check_shape(tensor, name, ndim, shape, message));
  uint64_t element = attn_dtype_bytes(made.dtype);
  made.ndim = ndim;
  for (int32_t i = 0; i < ndim; i++) {
    made.shape[i] = tensor->shape[i];
  }
  if (tensor->strides == NULL) {
    ATTN_TRY(compact_strides(&made, name, element, message));
  } else {
    ATTN_TRY(given_strides(&made, tensor, name, element, access, message));
  }
  if (!is_empty(&made)) {
    if (tensor->data == NULL) {
      return attn_fail(message, ATTN_E_NULL, "%s: data is NULL, expected elements", name);
    }
    if (tensor->byte_offset > (uint64_t)PTRDIFF_MAX ||
        tensor->byte_offset > (uint64_t)(UINTPTR_MAX - (uintptr_t)tensor->data)) {
      return attn_fail(message, ATTN_E_OVERFLOW, "%s: byte_offset %llu lies beyond the address space", name,
                       (unsigned long long)tensor->byte_offset);
    }
    made.data = (unsigned char *)tensor->data + tensor->byte_offset;
    if ((uintptr_t)made.data % element != 0) {
      return attn_fail(message, ATTN_E_ALIGN, "%s: its first element is at an address that is not a multiple of %u",
                       name, (unsigned)element);
    }
    ATTN_TRY(check_extent(&made, name, element, message));
    if (access == ATTN_WRITE) {
      ATTN_TRY(check_injective(&made, name, element, message));
    }
  }
  *view = made;
  return ATTN_OK;
}

void attn_view_place_empty(attn_view *view, const attn_view *beside) {
  if (is_empty(view)) {
    view->data = beside->data;
    memset(view->stride, 0, sizeof view->stride);
  }
}

uint64_t attn_view_extent(const attn_view *view) {
  if (view->ndim == 0 || view->data == NULL || is_empty(view)) {
    return 0;
  }
  uint64_t last = attn_dtype_bytes(view->dtype);
  for (int32_t i = 0; i < view->ndim; i++) {
    last += ((uint64_t)view->shape[i] - 1) * (uint64_t)view->stride[i];
  }
  return last;
}

int64_t attn_view_elements(const attn_view *view) {
  int64_t count = view->ndim > 0 ? 1 : 0;
  for (int32_t i = 0; i < view->ndim; i++) {
    count *= view->shape[i];
  }
  return count;
}

/* A view as nested steps: the axes that move, by rising stride, and the bytes that the first k of them span. */
typedef struct steps {
  int32_t count;
  int64_t stride[ATTN_VIEW_MAX_NDIM];
  int64_t extent[ATTN_VIEW_MAX_NDIM];
  int64_t span[ATTN_VIEW_MAX_NDIM + 1];
} steps;

static steps steps_of(const attn_view *view) {
  steps s;
  s.count = 0;
  for (int32_t i = 0; i < view->ndim; i++) {
    if (view->shape[i] <= 1 || view->stride[i] == 0) {
      continue;
    }
    int32_t at = s.count++;
    for (; at > 0 && s.stride[at - 1] > view->stride[i]; at--) {
      s.stride[at] = s.stride[at - 1];
      s.extent[at] = s.extent[at - 1];
    }
    s.stride[at] = view->stride[i];
    s.extent[at] = view->shape[i];
  }
  s.span[0] = (int64_t)attn_dtype_bytes(view->dtype);
  for (int32_t i = 0; i < s.count; i++) {
    s.span[i + 1] = s.span[i] + s.stride[i] * (s.extent[i] - 1);
  }
  return s;
}

/* Do the first ka steps of a, at 0, and the first kb steps of b, at `distance`, share a byte? Ranges apart: no. Else
   the axis of the larger stride is taken off (both axes at once where the strides are equal: K and V side by side in
   a block) and the few places are followed where what is left can still meet. Rows that overlap themselves, or more
   than two such places: yes, without looking further. */
static int meets(const steps *a, int32_t ka, const steps *b, int32_t kb, int64_t distance) {
  if (distance >= a->span[ka] || -distance >= b->span[kb]) {
    return 0;
  }
  if (ka == 0 && kb == 0) {
    return 1;
  }
  int64_t stride_a = ka > 0 ? a->stride[ka - 1] : 0;
  int64_t stride_b = kb > 0 ? b->stride[kb - 1] : 0;
  int64_t stride = attn_max(stride_a, stride_b);
  int32_t next_a = stride_a == stride ? ka - 1 : ka;
  int32_t next_b = stride_b == stride ? kb - 1 : kb;
  if (a->span[next_a] > stride && stride_a == stride) {
    return 1;
  }
  if (b->span[next_b] > stride && stride_b == stride) {
    return 1;
  }
  /* block i of a meets block j of b where -span of b's rest < distance + (j - i) * stride < span of a's rest */
  int64_t least = stride_b == stride ? 1 - b->extent[kb - 1] : 0; /* of i - j */
  int64_t most = stride_a == stride ? a->extent[ka - 1] - 1 : 0;
  least = attn_max(least, attn_floor_div(distance - a->span[next_a], stride) + 1);
  most = attn_min(most, -attn_floor_div(-(distance + b->span[next_b]), stride) - 1);
  if (most - least > 1) {
    return 1;
  }
  for (int64_t i = least; i <= most; i++) {
    if (meets(a, next_a, b, next_b, distance - i * stride)) {
      return 1;
    }
  }
  return 0;
}

int attn_view_overlap(const attn_view *a, const attn_view *b) {
  if (attn_view_extent(a) == 0 || attn_view_extent(b) == 0) {
    return 0;
  }
  steps steps_a = steps_of(a);
  steps steps_b = steps_of(b);
  uintptr_t pa = (uintptr_t)a->data;
  uintptr_t pb = (uintptr_t)b->data;
  if ((pb > pa ? pb - pa : pa - pb) > (uintptr_t)INT64_MAX) {
    return 0;
  }
  int64_t distance = pb >= pa ? (int64_t)(pb - pa) : -(int64_t)(pa - pb);
  return meets(&steps_a, steps_a.count, &steps_b, steps_b.count, distance);
}

int attn_view_same(const attn_view *a, const attn_view *b) {
  if (a->data != b->data || a->dtype != b->dtype || a->ndim != b->ndim) {
    return 0;
  }
  for (int32_t i = 0; i < a->ndim; i++) {
    if (a->shape[i] != b->shape[i] || (a->shape[i] > 1 && a->stride[i] != b->stride[i])) {
      return 0;
    }
  }
  return 1;
}
