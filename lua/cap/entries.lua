--[[ entries: reads and writes the entries of `caps`: the limit in force, and the limits that code has declared. ]]

--- Parse an entry of `caps`; nil for no entry. `code` is the limit that code declares, `was` the limits that it
--- declared before.
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

--- Code declares another limit. Remember the previous one, so that older code cannot set it again.
local function declare(entry, limit)
  if entry.code then
    entry.was = entry.was == '' and entry.code or entry.was .. ',' .. entry.code
  end
  entry.code = limit
end
