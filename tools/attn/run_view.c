/* SPDX-License-Identifier: Apache-2.0 */
/* Views of tensors for the library: plain, or padded copies in memory full of NaN. Padding is three elements after each
   innermost row and after each outer axis, so no stride is compact and no row starts where a vector would like it. */
#include <stdlib.h>
#include <string.h>

#include "run.h"

#define PADDING 3 /* elements */

static void plain_view(run_view *view, const st_tensor *tensor) {
  memset(view, 0, sizeof(*view));
  memcpy(view->shape, tensor->shape, sizeof(view->shape));
  attn_tensor_cpu(&view->view, tensor->data, st_dtype_of_library(tensor->dtype), tensor->rank, view->shape);
  view->tensor = &view->view;
}

static int pad_view(run_view *view, const st_tensor *tensor, cli_report *report) {
  uint64_t element = attn_dtype_bytes(st_dtype_of_library(tensor->dtype));
  uint64_t elements = 1;
  for (int32_t axis = tensor->rank - 1; axis >= 0; --axis) {
    view->strides[axis] = (int64_t)elements;
    if (!cli_multiply(elements, (uint64_t)tensor->shape[axis], &elements) || elements > INT64_MAX / 16) {
      return cli_fail(report, CLI_FAILED, "no memory for a padded tensor %s", tensor->name);
    }
    elements += PADDING;
  }
  view->memory = cli_alloc(elements * element, 1);
  if (view->memory == NULL) {
    return cli_fail(report, CLI_FAILED, "no memory for a padded tensor %s", tensor->name);
  }
  view->view.data = view->memory;
  view->view.strides = view->strides;
  return CLI_OK;
}

/* Step to the next innermost row; 0 after the last. */
static int next_row(const st_tensor *tensor, int64_t *index) {
  for (int32_t axis = tensor->rank - 2; axis >= 0; --axis) {
    if (++index[axis] < tensor->shape[axis]) {
      return 1;
    }
    index[axis] = 0;
  }
  return 0;
}

/* Offsets in elements of an innermost row, in the tensor and in the padded copy. */
static void row_offsets(const run_view *view, const st_tensor *tensor, const int64_t *index, int64_t *compact,
                        int64_t *padded) {
  int64_t stride = tensor->rank > 0 ? tensor->shape[tensor->rank - 1] : 1;
  *compact = 0;
  *padded = 0;
  for (int32_t axis = tensor->rank - 2; axis >= 0; --axis) {
    *compact += index[axis] * stride;
    *padded += index[axis] * view->strides[axis];
    stride *= tensor->shape[axis];
  }
}

static void copy_in(const run_view *view, const st_tensor *tensor, run_owned owned, const void *context) {
  size_t element = attn_dtype_bytes(st_dtype_of_library(tensor->dtype));
  int64_t inner = tensor->rank > 0 ? tensor->shape[tensor->rank - 1] : 1;
  int64_t index[ST_MAX_RANK] = {0};
  do {
    int64_t compact;
    int64_t padded;
    int64_t count = owned != NULL ? owned(context, index) : inner;
    count = count < inner ? count : inner;
    row_offsets(view, tensor, index, &compact, &padded);
    if (count > 0) {
      memcpy(view->memory + (size_t)padded * element, tensor->data + (size_t)compact * element,
             (size_t)count * element);
    }
  } while (next_row(tensor, index));
}

int run_view_open(run_view *view, const st_tensor *tensor, int poison, run_owned owned, const void *context,
                  cli_report *report) {
  memset(view, 0, sizeof(*view));
  if (tensor == NULL) {
    return CLI_OK;
  }
  plain_view(view, tensor);
  if (!poison || tensor->bytes == 0) {
    return CLI_OK;
  }
  int code = pad_view(view, tensor, report);
  if (code == CLI_OK) {
    copy_in(view, tensor, owned, context);
  }
  return code;
}

int run_view_output(run_view *view, const st_tensor *tensor, int poison, cli_report *report) {
  plain_view(view, tensor);
  return poison && tensor->bytes > 0 ? pad_view(view, tensor, report) : CLI_OK;
}

void run_view_collect_row(const run_view *view, st_tensor *tensor, const int64_t *index) {
  size_t element = attn_dtype_bytes(st_dtype_of_library(tensor->dtype));
  int64_t inner = tensor->rank > 0 ? tensor->shape[tensor->rank - 1] : 1;
  int64_t compact;
  int64_t padded;
  row_offsets(view, tensor, index, &compact, &padded);
  memcpy(tensor->data + (size_t)compact * element, view->memory + (size_t)padded * element, (size_t)inner * element);
}

void run_view_collect(const run_view *view, st_tensor *tensor, int64_t rows) {
  int64_t index[ST_MAX_RANK] = {0};
  if (view->memory == NULL) {
    return;
  }
  do {
    if (index[0] < rows) {
      run_view_collect_row(view, tensor, index);
    }
  } while (next_row(tensor, index));
}

void run_view_close(run_view *view) {
  free(view->memory);
  memset(view, 0, sizeof(*view));
}
