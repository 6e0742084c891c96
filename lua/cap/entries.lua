--[[ entries: what an entry of `caps` says: the limit that holds, and what code has declared. ]]

--- An entry of `caps`, taken apart; nil for none. `code` is what code declares, `was` what it declared before.
local function read_entry(text)
  if not text then
    return nil
  end
  local limit, version, origin = text:match('^(%S+) version=(%d+) from=(%l+)')
  return {
    limit = limit, version = tonumber(version), source = origin, set = text:match(' by=%S+ at=%d+') or '',
    code = origin == 'code' and limit or text:match(' code=(%S+)'), was = text:match(' was=(%S+)$') or '',
  }
end

local function write_entry(entry)
  return entry.limit .. ' version=' .. entry.version .. ' from=' .. entry.source .. entry.set ..
    (entry.source == 'live' and entry.code and ' code=' .. entry.code or '') .. (entry.was ~= '' and ' was=' .. entry.was or '')
end

local function has_declared(entry, limit)
  return limit == entry.code or (',' .. entry.was .. ','):find(',' .. limit .. ',', 1, true)
end

--- Code declares another limit. The one before is remembered, so that it does not come back.
local function declare(entry, limit)
  if entry.code then
    entry.was = entry.was == '' and entry.code or entry.was .. ',' .. entry.code
  end
  entry.code = limit
end
