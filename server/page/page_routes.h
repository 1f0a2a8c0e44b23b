// The page and its JSON on an HTTP server.
#pragma once

#include <functional>

#include "server/page/page_data.h"
#include "server/readiness.h"

namespace httplib {
class Server;
}

namespace ziggurat {

/// Adds, before `server` listens:
///   GET /                   the page, complete in itself
///   GET /api/state          PageData::State
///   GET /api/history        PageData::HistoryText
///   GET /api/requests/ID    PageData::Request, or {"request": null} where there is none
/// Nothing of them may be kept by a cache, framed, or taken for another type than it is; the page
/// may load nothing and ask nobody but this server. `page` must outlive `server`.
void AddPageRoutes(PageData* page, std::function<Readiness()> readiness, httplib::Server* server);

/// The page with `nonce` on its style and script, which alone its Content-Security-Policy lets run.
std::string PageHtml(const std::string& nonce);

}  // namespace ziggurat
