/* SPDX-License-Identifier: Apache-2.0 */
/* cache_write.h: the checks of a write apart from the write. */
#ifndef ATTN_API_CACHE_WRITE_H
#define ATTN_API_CACHE_WRITE_H

#include "core/plan_impl.h"

/* Every tensor and list of a write judged; *view is what a backend's cache_write() takes. */
attn_status attn_cache_write_view(const attn_cache_write_args *args, attn_write_view *view, attn_message *message);

#endif
